/* Changes a setting of this thread for one call. In Python, an interrupt may be raised between the change and the `try`
 * whose `finally` restores the setting (also in `with torch.no_grad():`), or instead of the restoring call; gradients
 * would then stay disabled for the rest of the program. In C, no interrupt is raised at these points. */
#include "native.h"

enum { READ, WRITE, DURING, FUNCTION, FIRST, ATTEMPTS = 8 };

static int write_setting(PyObject *write, PyObject *value) {
    PyObject *done = PyObject_CallOneArg(write, value);
    Py_XDECREF(done);
    return done != NULL;
}

/* Restores the setting and keeps a pending exception; reports a setting that cannot be restored. */
static void switch_back(PyObject *write, PyObject *before) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    int written = 0;
    for (int attempt = 0; attempt < ATTEMPTS && !written; attempt++) { /* it may fail for lack of memory */
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
