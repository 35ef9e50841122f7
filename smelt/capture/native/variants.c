/* Variants(make, kind_of, mode, most): dispatches a call to the version of a function that was made for the kinds of
 * its inputs. The kind of an input is a TensorSpec, a number, None, or another value of `kind_of`, which is then
 * called for each comparison. The value of `mode()`, such as whether gradients are recorded, is compared as well. */
#include "guards/guards.h"
#include "tensor.h"
#include <structmember.h>

typedef struct {
    PyObject *mode, *kinds, *run; /* strong */
} Variant;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *make, *kind_of, *mode;
    Py_ssize_t count, most;
    Variant *variants;
} Variants;

/* Whether an input is of the kind; -1 with an exception. */
static int is_of_kind(PyObject *kind_of, PyObject *kind, PyObject *value) {
    if (Py_TYPE(kind) == &TensorSpecType) return tensor_spec_matches(kind, value);
    if (is_immutable(kind)) return equal_constants(value, kind);
    PyObject *now = PyObject_CallOneArg(kind_of, value);
    int same = now ? PyObject_RichCompareBool(now, kind, Py_EQ) : -1;
    Py_XDECREF(now);
    return same;
}

static int are_of_kinds(PyObject *kind_of, PyObject *kinds, PyObject *const *args, Py_ssize_t count) {
    int same = PyTuple_GET_SIZE(kinds) == count;
    for (Py_ssize_t i = 0; same > 0 && i < count; i++) same = is_of_kind(kind_of, PyTuple_GET_ITEM(kinds, i), args[i]);
    return same;
}

static void move_to_front(Variants *self, Py_ssize_t index) {
    Variant found = self->variants[index];
    memmove(self->variants + 1, self->variants, (size_t)index * sizeof(Variant));
    self->variants[0] = found;
}

/* The version for the inputs as a new reference; NULL without an exception if there is no such version. */
static PyObject *find(Variants *self, PyObject *mode, PyObject *const *args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (self->variants[i].mode != mode) continue;
        PyObject *kinds = Py_NewRef(self->variants[i].kinds), *run = Py_NewRef(self->variants[i].run);
        int same = are_of_kinds(self->kind_of, kinds, args, count);
        Py_DECREF(kinds);
        if (same > 0) {
            if (i && i < self->count && self->variants[i].run == run) move_to_front(self, i);
            return run;
        }
        Py_DECREF(run);
        if (same < 0) return NULL;
    }
    return NULL;
}

static PyObject *kinds_of(const Variants *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *kinds = PyTuple_New(count);
    for (Py_ssize_t i = 0; kinds && i < count; i++) {
        PyObject *kind = PyObject_CallOneArg(self->kind_of, args[i]);
        if (kind) PyTuple_SET_ITEM(kinds, i, kind);
        else Py_CLEAR(kinds);
    }
    return kinds;
}

static PyObject *add(Variants *self, PyObject *mode, PyObject *const *args, Py_ssize_t count) {
    PyObject *kinds = kinds_of(self, args, count), *inputs = kinds ? PyTuple_New(count) : NULL, *run = NULL;
    for (Py_ssize_t i = 0; inputs && i < count; i++) PyTuple_SET_ITEM(inputs, i, Py_NewRef(args[i]));
    if (inputs) run = PyObject_CallFunctionObjArgs(self->make, inputs, self->count < self->most ? Py_True : Py_False, NULL);
    Py_XDECREF(inputs);
    if (run && self->count < self->most) {
        Variant made = {Py_NewRef(mode), Py_NewRef(kinds), Py_NewRef(run)};
        self->variants[self->count++] = made;
    }
    Py_XDECREF(kinds);
    return run;
}

static PyObject *variants_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
    Variants *self = (Variants *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names) return PyErr_Format(PyExc_TypeError, "no keywords are taken");
    if (!self->make) return PyErr_Format(PyExc_ReferenceError, "called after the garbage collector cleared it");
    Py_INCREF(self); /* the call may drop the last other reference */
    PyObject *mode = PyObject_CallNoArgs(self->mode), *run = mode ? find(self, mode, args, count) : NULL, *result = NULL;
    if (!run && mode && !PyErr_Occurred()) run = add(self, mode, args, count);
    Py_XDECREF(mode);
    if (run) result = PyObject_Vectorcall(run, args, (size_t)count, NULL);
    Py_XDECREF(run);
    Py_DECREF(self);
    return result;
}

static PyObject *variants_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"make", "kind_of", "mode", "most", NULL};
    PyObject *make, *kind_of, *mode;
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOn", names, &make, &kind_of, &mode, &most)) return NULL;
    if (!PyCallable_Check(make) || !PyCallable_Check(kind_of) || !PyCallable_Check(mode) || most < 1)
        return PyErr_Format(PyExc_TypeError, "Variants wants three callables and a positive number");
    Variants *self = (Variants *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->variants = PyMem_Calloc((size_t)most, sizeof(Variant));
    if (!self->variants) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->call = variants_call;
    self->most = most;
    self->make = Py_NewRef(make);
    self->kind_of = Py_NewRef(kind_of);
    self->mode = Py_NewRef(mode);
    return (PyObject *)self;
}

static int variants_traverse(Variants *self, visitproc visit, void *arg) {
    Py_VISIT(self->make);
    Py_VISIT(self->kind_of);
    Py_VISIT(self->mode);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->variants[i].kinds);
        Py_VISIT(self->variants[i].run);
    }
    return 0;
}

static int variants_clear(Variants *self) {
    Py_CLEAR(self->make);
    Py_CLEAR(self->kind_of);
    Py_CLEAR(self->mode);
    while (self->count > 0) {
        Variant last = self->variants[--self->count];
        Py_DECREF(last.mode);
        Py_DECREF(last.kinds);
        Py_DECREF(last.run);
    }
    return 0;
}

static void variants_dealloc(Variants *self) {
    PyObject_GC_UnTrack(self);
    variants_clear(self);
    PyMem_Free(self->variants);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static Py_ssize_t variants_length(PyObject *self) { return ((Variants *)self)->count; }
static PySequenceMethods variants_sequence = {.sq_length = variants_length};

PyTypeObject VariantsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.Variants",
    .tp_doc = "Variants(make, kind_of, mode, most): calls what make(inputs, is kept) gave for inputs of their kinds in "
              "this mode; `most` of them are kept",
    .tp_basicsize = sizeof(Variants),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = variants_new,
    .tp_dealloc = (destructor)variants_dealloc,
    .tp_traverse = (traverseproc)variants_traverse,
    .tp_clear = (inquiry)variants_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Variants, call),
    .tp_as_sequence = &variants_sequence,
};
