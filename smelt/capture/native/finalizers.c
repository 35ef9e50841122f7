/* Whether code of the program runs when an object dies: a `__del__`, the `finally` of a generator that is dropped, the
 * callback of a weak reference. */
#include "native.h"
#include "versions.h"
#include <opcode.h>

typedef struct {
    int left;        /* objects that are looked at: guards ask */
    PyObject *found; /* a list of what has a finalizer; NULL: the first one is enough */
} Look;

enum { MOST = 200 };

/* -- where a generator stands ------------------------------------------------------------------ */
static int number(const unsigned char **at) {
    int value = **at & 63;
    while (*(*at)++ & 64) value = value << 6 | (**at & 63);
    return value;
}

/* Whether an exception handler covers an instruction. From 3.12 on one that only turns StopIteration into another
   exception stands around the whole of a generator. */
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
    if (state == FRAME_CREATED) return !PyGen_CheckExact(value); /* a coroutine warns that nobody awaited it */
    if (state >= FRAME_EXECUTING) return 0;
    Frame *frame = (Frame *)generator->gi_iframe;
    PyCodeObject *code = FRAME_CODE(frame);
    return is_covered(code, (int)(FRAME_NEXT(frame) - _PyCode_CODE(code)) - 1);
}

/* -- who hears of an object's death ------------------------------------------------------------ */
/* The tables of weakref forget what died, and call no code of the program. */
static int is_of_tables(PyObject *callback) {
    if (!PyFunction_Check(callback)) return 0;
    PyObject *module = ((PyFunctionObject *)callback)->func_module, *name = ((PyFunctionObject *)callback)->func_name;
    if (!module || !PyUnicode_Check(module)) return 0;
    return (!PyUnicode_CompareWithASCIIString(module, "weakref") && !PyUnicode_CompareWithASCIIString(name, "remove")) ||
           (!PyUnicode_CompareWithASCIIString(module, "_weakrefset") && !PyUnicode_CompareWithASCIIString(name, "_remove"));
}

static int has_callback(PyObject *value) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) return 0;
    PyWeakReference **list = (PyWeakReference **)PyObject_GET_WEAKREFS_LISTPTR(value);
    for (PyWeakReference *each = list ? *list : NULL; each; each = each->wr_next)
        if (each->wr_callback && !is_of_tables(each->wr_callback)) return 1;
    return 0;
}

/* -- what dies with an object ------------------------------------------------------------------ */
static int has_finalizer(PyObject *value) {
    if (PyGen_CheckExact(value) || PyCoro_CheckExact(value) || PyAsyncGen_CheckExact(value))
        return generator_finalizes(value);
    return (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE && Py_TYPE(value)->tp_finalize) || has_callback(value);
}

/* 1: it has a finalizer; -1 with an exception. */
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
    PyObject *held[] = {function->func_closure, function->func_defaults, function->func_kwdefaults,
                        function->func_dict};
    for (size_t i = 0; i < sizeof(held) / sizeof(*held); i++) {
        int result = held[i] ? look(held[i], given) : 0;
        if (result) return result;
    }
    return 0;
}

int finalizes(PyObject *value) {
    Look self = {MOST, NULL};
    return look(value, &self);
}

static PyObject *finalizers(PyObject *module, PyObject *value) {
    Look self = {MOST, PyList_New(0)};
    if (self.found && look(value, &self) < 0) Py_CLEAR(self.found);
    return self.found;
}

PyMethodDef finalizers_methods[] = {
    {"finalizers", finalizers, METH_O, "finalizers(object): what it is or holds whose death runs code of the program"},
    {NULL, NULL, 0, NULL},
};
