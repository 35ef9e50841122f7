/* Sets the exception that is being handled: `sys.exception()` returns it, a bare `raise` raises it, and new exceptions
 * get it as their context. A frame that runs in place of another one sets it where the program's frame would, and
 * restores it. */
#include "native.h"

/* Steals `error`; returns the exception that was handled before, or NULL. */
PyObject *handled_swap(PyObject *error) {
    _PyErr_StackItem *top = PyThreadState_Get()->exc_info;
    PyObject *before = top->exc_value;
    top->exc_value = error;
    return before;
}

/* The exception that is being handled, as a new reference; NULL if none is. */
PyObject *handled_now(void) { return Py_XNewRef(PyThreadState_Get()->exc_info->exc_value); }

/* Handles `error`, which is stolen; an exception that is being raised stays unchanged. */
void handled_restore(PyObject *error) { Py_XDECREF(handled_swap(error)); }

static int is_handled(PyObject *error, const char *who) {
    if (error == Py_None || PyExceptionInstance_Check(error)) return 1;
    PyErr_Format(PyExc_TypeError, "%s wants an exception or None, not %s", who, Py_TYPE(error)->tp_name);
    return 0;
}

static PyObject *handle(PyObject *module, PyObject *error) {
    if (!is_handled(error, "handle()")) return NULL;
    PyObject *before = handled_swap(Py_NewRef(error));
    return before ? before : Py_NewRef(Py_None);
}

/* Calls a function while `error` is handled. In Python, the `finally` clause that restores the exception would itself
 * handle one. */
static PyObject *call_handling(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (count < 2) return PyErr_Format(PyExc_TypeError, "call_handling(exception or None, callable, arguments ...)");
    if (!is_handled(args[0], "call_handling()")) return NULL;
    PyObject *before = handled_swap(Py_NewRef(args[0]));
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)count - 2, names);
    handled_restore(before);
    return result;
}

/* Raises an exception without a change of its context, which the statement `raise` would set to the exception being
 * handled. */
static PyObject *reraise(PyObject *module, PyObject *error) {
    if (!PyExceptionInstance_Check(error))
        return PyErr_Format(PyExc_TypeError, "reraise() wants an exception, not %s", Py_TYPE(error)->tp_name);
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), Py_NewRef(error), PyException_GetTraceback(error));
    return NULL;
}

PyMethodDef handled_methods[] = {
    {"handle", handle, METH_O, "handle(exception or None) -> the one before: set the exception being handled"},
    {"call_handling", METHOD(call_handling), METH_FASTCALL | METH_KEYWORDS,
     "call_handling(exception or None, fn, ...): fn(...) as in an except clause for that exception"},
    {"reraise", reraise, METH_O, "reraise(exception): raise it with its context unchanged"},
    {NULL, NULL, 0, NULL},
};
