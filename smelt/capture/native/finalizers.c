/* Tells whether code of the program runs when an object is freed: a `__del__`, the `finally` clause of a suspended
 * generator, or the callback of a weak reference. */
#include "native.h"
#include "versions.h"
#include <opcode.h>

typedef struct {
    int left;        /* number of objects still to visit; bounded, since guards use the result */
    PyObject *found; /* list that collects the objects with finalizers; NULL: stop at the first one */
} Look;

enum { MAX_OBJECTS = 200 };

/* -- suspended generators ---------------------------------------------------------------------- */
static int number(const unsigned char **at) {
    int value = **at & 63;
    while (*(*at)++ & 64) value = value << 6 | (**at & 63);
    return value;
}

/* Whether an exception handler covers an instruction. The handler that only converts StopIteration, which covers every
   generator's whole body from 3.12 on, is ignored. */
static int is_covered(PyCodeObject *code, int index) {
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(code->co_exceptiontable);
    const unsigned char *end = at + PyBytes_GET_SIZE(code->co_exceptiontable);
    while (at < end) {
        int start = number(&at), size = number(&at), target = number(&at);
        number(&at); /* depth */
        if (index < start || index >= start + size) continue;
#if PY_VERSION_HEX >= 0x030c0000
        return _PyCode_CODE(code)[target].op.code != CALL_INTRINSIC_1;
#else
        (void)target;
        return 1;
#endif
    }
    return 0;
}

static int generator_finalizes(PyObject *value) {
    PyGenObject *generator = (PyGenObject *)value;
    int state = generator->gi_frame_state;
    if (state == FRAME_CREATED) return !PyGen_CheckExact(value); /* a coroutine warns that it was never awaited */
    if (state >= FRAME_EXECUTING) return 0;
    Frame *frame = (Frame *)generator->gi_iframe;
    PyCodeObject *code = FRAME_CODE(frame);
    return is_covered(code, (int)(FRAME_NEXT(frame) - _PyCode_CODE(code)) - 1);
}

/* -- callbacks of weak references -------------------------------------------------------------- */
static int is_in_dynamo(PyObject *module) {
    static const char package[] = "torch._dynamo.";
    Py_ssize_t length;
    const char *name = PyUnicode_AsUTF8AndSize(module, &length);
    if (!name) PyErr_Clear();
    return name && length >= (Py_ssize_t)sizeof(package) && !memcmp(name, package, sizeof(package) - 1);
}

/* Whether a callback is one of weakref's containers, or of the table in which torch.compile, once it has been used, keeps
   each module: it only removes an entry and runs no code of the program. */
static int is_of_tables(PyObject *callback) {
    if (!PyFunction_Check(callback)) return 0;
    PyObject *module = ((PyFunctionObject *)callback)->func_module, *name = ((PyFunctionObject *)callback)->func_name;
    if (!module || !PyUnicode_Check(module)) return 0;
    return is_in_dynamo(module) ||
           (!PyUnicode_CompareWithASCIIString(module, "weakref") && !PyUnicode_CompareWithASCIIString(name, "remove")) ||
           (!PyUnicode_CompareWithASCIIString(module, "_weakrefset") && !PyUnicode_CompareWithASCIIString(name, "_remove"));
}

static int has_callback(PyObject *value) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) return 0;
    PyWeakReference **list = (PyWeakReference **)PyObject_GET_WEAKREFS_LISTPTR(value);
    for (PyWeakReference *each = list ? *list : NULL; each; each = each->wr_next)
        if (each->wr_callback && !is_of_tables(each->wr_callback)) return 1;
    return 0;
}

/* -- objects that are freed with an object ----------------------------------------------------- */
static int has_finalizer(PyObject *value) {
    if (PyGen_CheckExact(value) || PyCoro_CheckExact(value) || PyAsyncGen_CheckExact(value))
        return generator_finalizes(value);
    return (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE && Py_TYPE(value)->tp_finalize) || has_callback(value);
}

/* A visitor: 1 if the object, or an object to which it refers, has a finalizer and `found` is NULL, else 0; -1 with an
 * exception. */
static int look(PyObject *value, void *given) {
    Look *self = given;
    PyTypeObject *type = Py_TYPE(value);
    if (!PyObject_IS_GC(value) || PyType_Check(value) || PyModule_Check(value) || PyCode_Check(value)) return 0;
    if (self->left-- <= 0) return 0;
    if (has_finalizer(value)) {
        if (!self->found) return 1;
        if (PyList_Append(self->found, value) < 0) return -1;
    }
    if (!PyFunction_Check(value)) return type->tp_traverse ? type->tp_traverse(value, look, given) : 0;
    PyFunctionObject *function = (PyFunctionObject *)value; /* not its globals */
    PyObject *referents[] = {function->func_closure, function->func_defaults, function->func_kwdefaults,
                        function->func_dict};
    for (size_t i = 0; i < sizeof(referents) / sizeof(*referents); i++) {
        int result = referents[i] ? look(referents[i], given) : 0;
        if (result) return result;
    }
    return 0;
}

int finalizes(PyObject *value) {
    Look self = {MAX_OBJECTS, NULL};
    return look(value, &self);
}

static PyObject *finalizers(PyObject *module, PyObject *value) {
    Look self = {MAX_OBJECTS, PyList_New(0)};
    if (self.found && look(value, &self) < 0) Py_CLEAR(self.found);
    return self.found;
}

PyMethodDef finalizers_methods[] = {
    {"finalizers", finalizers, METH_O, "finalizers(object): the object and those it refers to whose death runs code of the program"},
    {NULL, NULL, 0, NULL},
};
