/* A setting of this thread for the time of one call. In Python an interrupt may come between a switch and the `finally`
 * that switches back (`with torch.no_grad():` has such a place, too), or in place of the call that does: gradients then
 * stay off for the rest of the program. Here nothing runs between. */
#include "native.h"

enum { READ, WRITE, DURING, FUNCTION, FIRST, ATTEMPTS = 8 };

static int write_setting(PyObject *write, PyObject *value) {
    PyObject *done = PyObject_CallOneArg(write, value);
    Py_XDECREF(done);
    return done != NULL;
}

/* What is raised already goes on; a setting that cannot be written is told. */
static void switch_back(PyObject *write, PyObject *before) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    int written = 0;
    for (int attempt = 0; attempt < ATTEMPTS && !written; attempt++) { /* memory may be short */
        PyErr_Clear();
        written = write_setting(write, before);
    }
    if (!written) PyErr_WriteUnraisable(write);
    PyErr_Restore(type, error, traceback);
}

PyObject *switched(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count < FIRST) return PyErr_Format(PyExc_TypeError, "switched() needs a setting, its value and a function");
    PyObject *before = PyObject_CallNoArgs(args[READ]), *result = NULL;
    if (!before) return NULL;
    if (write_setting(args[WRITE], args[DURING])) {
        result = PyObject_Vectorcall(args[FUNCTION], args + FIRST, (size_t)(count - FIRST), NULL);
        switch_back(args[WRITE], before);
    }
    Py_DECREF(before);
    return result;
}
