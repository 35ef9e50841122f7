/* Segment(driver, device, stream, prepare): kernels that one call launches in order on the device's current stream.
 *
 * A call without a plan first calls `prepare(table)`. It returns None if it has launched all kernels itself and is to
 * be called at the next call as well, or (plan, launched[, pointers, variant]); cuda_plan.h describes plans.
 *
 * The kernels of the plan require that `pointers`, given as (slot, bytes), are multiples of 16. Each call checks all
 * of them. If some are not aligned, it launches the plan that `variant(positions, table)` returns for their positions
 * in `pointers`; `variant` is called once for each such set. After MAX_VARIANTS sets, a plan is requested for the
 * union of all sets, which serves any subset. `variant` returns (plan, launched), where a plan may also be a function
 * of the table that replaces the kernels; or None: then nothing is launched and the call returns False.
 *
 * The interpreter lock is released while kernels are launched: the driver blocks when its queue is full, and to drain
 * it may require another thread. Therefore the values are on the stack and a plan is never replaced. */
#include "cuda.h"
#include "cuda_driver.h"
#include "cuda_plan.h"
#include "../table.h"
#include <stddef.h>
#include <string.h>

enum { MAX_VARIANTS = 16, ALIGNMENT = 16 };

typedef struct Variant { /* `moved`: a bit for each unaligned pointer; `any`: the plan serves subsets as well */
    struct Variant *next;
    int any, refused;
    PyObject *other; /* the function that replaces a plan, or NULL */
    smelt_plan plan;
    uint64_t moved[];
} Variant;
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    smelt_cuda_driver *driver;
    int ordinal, ready;
    PyObject *ordinal_object, *stream, *prepare, *variant;
    smelt_plan plan;
    smelt_argument *pointers;
    Py_ssize_t pointer_count, variant_count;
    Variant *variants;
} Segment;

static int launch_all(const Segment *s, const smelt_plan *p, char **slots, void *stream, Py_ssize_t *at) {
    const smelt_cuda_api *api = &s->driver->api;
    uint64_t values[p->parameters + 1];
    void *parameters[p->parameters + 1];
    for (Py_ssize_t i = 0; i < p->parameters; i++) parameters[i] = &values[i];
    int error = 0;
    for (*at = 0; *at < p->count; ++*at) {
        const smelt_launch *l = &p->launches[*at];
        for (Py_ssize_t i = 0; i < l->count; i++) {
            const smelt_argument *a = &p->arguments[l->first + i];
            values[i] = (uint64_t)a->value + (a->slot < 0 ? 0 : (uint64_t)(uintptr_t)slots[a->slot]);
        }
        error = api->launch(l->function, l->grid[0], l->grid[1], l->grid[2], l->threads, 1, 1, l->shared, stream,
                            parameters, NULL);
        if (error) break;
    }
    return error;
}

/* Launches a plan in the device's context, which may not be current: another device is, or the thread never used
 * CUDA. */
static int launch_inside(const Segment *s, const smelt_plan *p, void *context, char **slots, void *stream,
                         Py_ssize_t *at) {
    void *current = NULL;
    int error = s->driver->api.current(&current);
    if (error || current == context) return error ? error : launch_all(s, p, slots, stream, at);
    error = s->driver->api.push(context);
    if (error) return error;
    error = launch_all(s, p, slots, stream, at);
    s->driver->api.pop(&current);
    return error;
}

static PyObject *run(Segment *s, const smelt_plan *plan, char **slots) {
    Py_ssize_t at = 0;
    void *context = smelt_cuda_context(s->driver, s->ordinal);
    PyObject *number = context ? PyObject_CallOneArg(s->stream, s->ordinal_object) : NULL;
    if (!number) return NULL;
    void *stream = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (!stream && PyErr_Occurred()) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = launch_inside(s, plan, context, slots, stream, &at);
    Py_END_ALLOW_THREADS
    if (!error) Py_RETURN_NONE;
    return smelt_cuda_fail_launch(s->driver, error, at < plan->count ? plan->launches[at].name : "");
}

static int read_pointers(Segment *s, PyObject *pointers) {
    const Py_ssize_t count = PyTuple_GET_SIZE(pointers);
    s->pointers = PyMem_Calloc((size_t)count + 1, sizeof(smelt_argument));
    if (!s->pointers) {
        PyErr_NoMemory();
        return 0;
    }
    for (s->pointer_count = 0; s->pointer_count < count; s->pointer_count++) {
        smelt_argument *to = &s->pointers[s->pointer_count];
        if (!smelt_read_argument(PyTuple_GET_ITEM(pointers, s->pointer_count), to, &s->plan.slots)) return 0;
        if (to->slot < 0) {
            PyErr_SetString(PyExc_TypeError, "a pointer is (slot, bytes)");
            return 0;
        }
    }
    return 1;
}

static void drop_plan(Segment *s) {
    smelt_free_plan(&s->plan);
    PyMem_Free(s->pointers);
    s->pointers = NULL;
    s->pointer_count = 0;
}

static int install(Segment *s, PyObject *plan, PyObject *pointers, PyObject *variant) {
    if (!smelt_read_plan(plan, &s->plan)) return 0;
    if (pointers && !read_pointers(s, pointers)) {
        drop_plan(s);
        return 0;
    }
    s->variant = Py_XNewRef(variant);
    s->ready = 1;
    Py_CLEAR(s->prepare);
    return 1;
}

/* Calls `prepare`. Returns 1 if the plan is to be launched, 0 if `prepare` has launched the kernels, -1 with an error
 * set. */
static int prepare_plan(Segment *s, PyObject *table) {
    PyObject *prepare = Py_NewRef(s->prepare); /* another thread may install a plan, which drops `prepare` */
    PyObject *answer = PyObject_CallOneArg(prepare, table), *plan, *pointers = NULL, *variant = NULL;
    Py_DECREF(prepare);
    if (!answer) return -1;
    int launched = 1;
    if (answer != Py_None) {
        if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "O!p|O!O", &PyTuple_Type, &plan, &launched,
                                                        &PyTuple_Type, &pointers, &variant)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "prepare answers None or (plan, launched)");
            launched = -1;
        } else if (!s->ready && !install(s, plan, variant ? pointers : NULL, variant)) {
            launched = -1;
        }
    }
    Py_DECREF(answer);
    return launched < 0 ? -1 : !launched;
}

static Variant *find_variant(const Segment *s, const uint64_t *moved, size_t words) {
    Variant *found = NULL;
    for (Variant *v = s->variants; v; v = v->next) {
        if (memcmp(v->moved, moved, words * sizeof *moved) == 0) return v;
        uint64_t others = !v->any;
        for (size_t i = 0; i < words; i++) others |= moved[i] & ~v->moved[i];
        if (!others) found = v; /* the last one in the list was made for the smallest set */
    }
    return found;
}

static PyObject *positions_of(const Segment *s, const uint64_t *moved) {
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < s->pointer_count; i++) {
        if (!(moved[i / 64] >> i % 64 & 1)) continue;
        PyObject *position = PyLong_FromSsize_t(i);
        if (!position || PyList_Append(found, position) < 0) Py_CLEAR(found);
        Py_XDECREF(position);
    }
    PyObject *positions = found ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return positions;
}

/* Reads the result of `variant`. Returns 1 for a plan or its replacement, 0 if nothing is launched; -1 with an error
 * set. */
static int read_variant(PyObject *answer, Variant *made, int *launched) {
    PyObject *plan;
    if (!answer) return -1;
    if (answer == Py_None) {
        made->refused = 1;
        return 0;
    }
    if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "Op", &plan, launched)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "variant answers (plan, launched) or None");
        return -1;
    }
    if (PyCallable_Check(plan)) {
        made->other = Py_NewRef(plan);
        return 1;
    }
    if (!PyTuple_Check(plan)) {
        PyErr_SetString(PyExc_TypeError, "a plan is a tuple, or a function of the table");
        return -1;
    }
    return smelt_read_plan(plan, &made->plan) ? 1 : -1;
}

static void free_variant(Variant *v) {
    Py_XDECREF(v->other);
    smelt_free_plan(&v->plan);
    PyMem_Free(v);
}

static Variant *make_variant(Segment *s, PyObject *table, const uint64_t *moved, size_t words, int *launched) {
    Variant *made = PyMem_Calloc(1, sizeof(Variant) + words * sizeof *moved);
    if (!made) return (Variant *)PyErr_NoMemory();
    memcpy(made->moved, moved, words * sizeof *moved);
    made->any = s->variant_count >= MAX_VARIANTS;
    for (const Variant *v = s->variants; made->any && v; v = v->next)
        for (size_t i = 0; i < words; i++) made->moved[i] |= v->moved[i];
    PyObject *positions = positions_of(s, made->moved), *variant = Py_NewRef(s->variant);
    PyObject *answer = positions ? PyObject_CallFunctionObjArgs(variant, positions, table, NULL) : NULL;
    Py_XDECREF(positions);
    Py_DECREF(variant);
    const int good = read_variant(answer, made, launched) >= 0;
    Py_XDECREF(answer);
    Variant *known = good ? find_variant(s, moved, words) : NULL; /* another thread may have made it */
    if (!good || known) {
        free_variant(made);
        return known;
    }
    made->next = s->variants;
    s->variants = made;
    s->variant_count++;
    return made;
}

/* The variant for a table in which some pointers are not aligned. Sets `launched` if its kernels have run already.
 * NULL with an error set. */
static const Variant *moved_variant(Segment *s, PyObject *table, char **slots, int *launched) {
    const size_t words = (size_t)(s->pointer_count + 63) / 64;
    uint64_t moved[words];
    memset(moved, 0, sizeof moved);
    for (Py_ssize_t i = 0; i < s->pointer_count; i++) {
        const uint64_t at = (uint64_t)(uintptr_t)slots[s->pointers[i].slot] + (uint64_t)s->pointers[i].value;
        moved[i / 64] |= (uint64_t)(at % ALIGNMENT != 0) << i % 64;
    }
    const Variant *variant = find_variant(s, moved, words);
    return variant ? variant : make_variant(s, table, moved, words, launched);
}

static PyObject *run_moved(Segment *s, PyObject *table, char **slots) {
    int launched = 0;
    const Variant *variant = moved_variant(s, table, slots, &launched); /* the segment owns it */
    if (!variant) return NULL;
    if (variant->refused) Py_RETURN_FALSE;
    if (launched) Py_RETURN_NONE;
    if (!variant->other) return run(s, &variant->plan, slots);
    PyObject *result = PyObject_CallOneArg(variant->other, table);
    if (!result) return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *segment_vectorcall(PyObject *self, PyObject *const *args, size_t flags, PyObject *keywords) {
    Segment *s = (Segment *)self;
    if (PyVectorcall_NARGS(flags) != 1 || keywords) {
        PyErr_SetString(PyExc_TypeError, "a segment takes a table");
        return NULL;
    }
    if (!s->ready) {
        const int left = prepare_plan(s, args[0]);
        if (left < 0) return NULL;
        if (!left) Py_RETURN_NONE;
    }
    Py_ssize_t size;
    char **slots = smelt_table_slots(args[0], &size);
    if (!slots) return NULL;
    if (size < s->plan.slots)
        return PyErr_Format(PyExc_IndexError, "a table of %zd slots, not %zd", size, s->plan.slots);
    uint64_t all = 0;
    for (Py_ssize_t i = 0; i < s->pointer_count; i++)
        all |= (uint64_t)(uintptr_t)slots[s->pointers[i].slot] + (uint64_t)s->pointers[i].value;
    return all % ALIGNMENT ? run_moved(s, args[0], slots) : run(s, &s->plan, slots);
}

static PyObject *segment_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *driver, *stream, *prepare;
    int ordinal;
    if (!PyArg_ParseTuple(args, "O!iOO", &smelt_driver_type, &driver, &ordinal, &stream, &prepare)) return NULL;
    Segment *s = (Segment *)type->tp_alloc(type, 0);
    if (!s) return NULL;
    s->call = segment_vectorcall;
    s->driver = (smelt_cuda_driver *)Py_NewRef(driver);
    s->stream = Py_NewRef(stream);
    s->prepare = Py_NewRef(prepare);
    s->ordinal = ordinal;
    s->ordinal_object = PyLong_FromLong(ordinal);
    if (!s->ordinal_object) {
        Py_DECREF(s);
        return NULL;
    }
    return (PyObject *)s;
}

static int segment_traverse(PyObject *self, visitproc visit, void *arg) {
    Segment *s = (Segment *)self;
    Py_VISIT(s->stream);
    Py_VISIT(s->prepare);
    Py_VISIT(s->variant);
    for (Variant *v = s->variants; v; v = v->next) Py_VISIT(v->other);
    return 0;
}

static int segment_clear(PyObject *self) {
    Py_CLEAR(((Segment *)self)->stream);
    Py_CLEAR(((Segment *)self)->prepare);
    Py_CLEAR(((Segment *)self)->variant);
    for (Variant *v = ((Segment *)self)->variants; v; v = v->next) Py_CLEAR(v->other);
    return 0;
}

static void segment_dealloc(PyObject *self) {
    Segment *s = (Segment *)self;
    PyObject_GC_UnTrack(self);
    segment_clear(self);
    drop_plan(s);
    for (Variant *next, *v = s->variants; v; v = next) {
        next = v->next;
        free_variant(v);
    }
    Py_XDECREF((PyObject *)s->driver);
    Py_XDECREF(s->ordinal_object);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject smelt_segment_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Segment",
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Segment(driver, device, stream, prepare): call it with a table to launch its kernels",
    .tp_new = segment_new,
    .tp_dealloc = segment_dealloc,
    .tp_traverse = segment_traverse,
    .tp_clear = segment_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Segment, call),
};
