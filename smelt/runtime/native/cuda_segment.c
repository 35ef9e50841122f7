/* Segment(driver, device, stream, prepare): kernels that one call launches in order on the device's current stream.
 *
 * Until there is a plan, a call asks `prepare(table)`, which answers None when it has launched everything itself and
 * comes to be asked again, or (plan, launched). A plan is a tuple of launches
 *     (name, function, (x, y, z), threads, shared, arguments, appended)
 * whose arguments are (slot, bytes), a pointer of the table, or an integer; `appended` null pointers follow them.
 *
 * The interpreter lock is released while launching: the driver blocks when its queue is full, and what would empty the
 * queue may be another thread's kernel. So the values live on the stack and a plan is never replaced. */
#include "cuda.h"
#include "cuda_driver.h"
#include "table.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST_PARAMETERS = 1024 };

typedef struct {
    int64_t slot, value; /* slot -1: the value itself */
} Argument;
typedef struct {
    char *name;
    void *function;
    unsigned grid[3], threads, shared;
    Py_ssize_t first, count;
} Launch;
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    smelt_cuda_driver *driver;
    int ordinal, ready;
    PyObject *ordinal_object, *stream, *prepare;
    Launch *launches;
    Argument *arguments;
    Py_ssize_t count, slots, parameters;
} Segment;

static int launch_all(const Segment *s, char **slots, void *stream, Py_ssize_t *at) {
    const smelt_cuda_api *api = &s->driver->api;
    uint64_t values[s->parameters + 1];
    void *parameters[s->parameters + 1];
    for (Py_ssize_t i = 0; i < s->parameters; i++) parameters[i] = &values[i];
    int error = 0;
    for (*at = 0; *at < s->count; ++*at) {
        const Launch *l = &s->launches[*at];
        for (Py_ssize_t i = 0; i < l->count; i++) {
            const Argument *a = &s->arguments[l->first + i];
            values[i] = (uint64_t)a->value + (a->slot < 0 ? 0 : (uint64_t)(uintptr_t)slots[a->slot]);
        }
        error = api->launch(l->function, l->grid[0], l->grid[1], l->grid[2], l->threads, 1, 1, l->shared, stream,
                            parameters, NULL);
        if (error) break;
    }
    return error;
}

/* In the device's context: another device may be current, and a thread that never used CUDA has none. */
static int launch_inside(const Segment *s, void *context, char **slots, void *stream, Py_ssize_t *at) {
    void *current = NULL;
    int error = s->driver->api.current(&current);
    if (error || current == context) return error ? error : launch_all(s, slots, stream, at);
    error = s->driver->api.push(context);
    if (error) return error;
    error = launch_all(s, slots, stream, at);
    s->driver->api.pop(&current);
    return error;
}

static PyObject *run(Segment *s, PyObject *table) {
    Py_ssize_t size, at = 0;
    char **slots = smelt_table_slots(table, &size);
    if (!slots) return NULL;
    if (size < s->slots) return PyErr_Format(PyExc_IndexError, "a table of %zd slots, not %zd", size, s->slots);
    void *context = smelt_cuda_context(s->driver, s->ordinal);
    PyObject *number = context ? PyObject_CallOneArg(s->stream, s->ordinal_object) : NULL;
    if (!number) return NULL;
    void *stream = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (!stream && PyErr_Occurred()) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = launch_inside(s, context, slots, stream, &at);
    Py_END_ALLOW_THREADS
    if (!error) Py_RETURN_NONE;
    char doing[256];
    PyOS_snprintf(doing, sizeof doing, "launching kernel '%.200s'", at < s->count ? s->launches[at].name : "");
    return smelt_cuda_fail(s->driver, error, doing);
}

static int read_argument(PyObject *object, Argument *to, Py_ssize_t *slots) {
    if (PyTuple_Check(object)) {
        long long slot, bytes;
        if (!PyArg_ParseTuple(object, "LL", &slot, &bytes)) return 0;
        if (slot < 0) {
            PyErr_Format(PyExc_ValueError, "slot %lld", slot);
            return 0;
        }
        *to = (Argument){slot, bytes};
        if (slot >= *slots) *slots = (Py_ssize_t)slot + 1;
        return 1;
    }
    *to = (Argument){-1, PyLong_AsLongLong(object)};
    return !PyErr_Occurred();
}

static int read_launch(PyObject *object, Segment *to, Launch *launch, Py_ssize_t *arguments) {
    const char *name;
    unsigned long long function;
    PyObject *given;
    int appended;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a launch is a tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(object, "sK(III)IIO!i", &name, &function, &launch->grid[0], &launch->grid[1],
                          &launch->grid[2], &launch->threads, &launch->shared, &PyTuple_Type, &given, &appended))
        return 0;
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (appended < 0 || count + appended > MOST_PARAMETERS) {
        PyErr_Format(PyExc_ValueError, "kernel '%s' has %zd parameters", name, count + appended);
        return 0;
    }
    launch->name = PyMem_Malloc(strlen(name) + 1);
    Argument *grown = PyMem_Realloc(to->arguments, (size_t)(*arguments + count + appended + 1) * sizeof(Argument));
    if (grown) to->arguments = grown;
    if (!launch->name || !grown) {
        PyErr_NoMemory();
        return 0;
    }
    strcpy(launch->name, name);
    launch->function = (void *)(uintptr_t)function;
    launch->first = *arguments;
    launch->count = count + appended;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read_argument(PyTuple_GET_ITEM(given, i), &to->arguments[*arguments + i], &to->slots)) return 0;
    for (Py_ssize_t i = count; i < launch->count; i++) to->arguments[*arguments + i] = (Argument){-1, 0};
    *arguments += launch->count;
    if (launch->count > to->parameters) to->parameters = launch->count;
    return 1;
}

static void free_plan(Segment *s) {
    for (Py_ssize_t i = 0; s->launches && i < s->count; i++) PyMem_Free(s->launches[i].name);
    PyMem_Free(s->launches);
    PyMem_Free(s->arguments);
    s->launches = NULL;
    s->arguments = NULL;
    s->count = s->slots = s->parameters = 0;
}

static int install(Segment *s, PyObject *plan) {
    Py_ssize_t arguments = 0;
    s->count = PyTuple_GET_SIZE(plan);
    s->launches = PyMem_Calloc((size_t)s->count + 1, sizeof(Launch));
    if (!s->launches) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < s->count; i++)
        if (!read_launch(PyTuple_GET_ITEM(plan, i), s, &s->launches[i], &arguments)) {
            free_plan(s);
            return 0;
        }
    s->ready = 1;
    Py_CLEAR(s->prepare);
    return 1;
}

/* 1: launch the plan now; 0: prepare launched; -1: error. */
static int prepare_plan(Segment *s, PyObject *table) {
    PyObject *prepare = Py_NewRef(s->prepare); /* another thread may finish first and drop it */
    PyObject *answer = PyObject_CallOneArg(prepare, table), *plan;
    Py_DECREF(prepare);
    if (!answer) return -1;
    int launched = 1;
    if (answer != Py_None) {
        if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "O!p", &PyTuple_Type, &plan, &launched)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "prepare answers None or (plan, launched)");
            launched = -1;
        } else if (!s->ready && !install(s, plan)) {
            launched = -1;
        }
    }
    Py_DECREF(answer);
    return launched < 0 ? -1 : !launched;
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
    return run(s, args[0]);
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
    return 0;
}

static int segment_clear(PyObject *self) {
    Py_CLEAR(((Segment *)self)->stream);
    Py_CLEAR(((Segment *)self)->prepare);
    return 0;
}

static void segment_dealloc(PyObject *self) {
    Segment *s = (Segment *)self;
    PyObject_GC_UnTrack(self);
    segment_clear(self);
    free_plan(s);
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
