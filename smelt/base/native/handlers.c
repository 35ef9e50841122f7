/* Passes exceptions that signal handlers raise while the compiler runs on to the user's program.
 *
 * If such an exception is an ordinary one (a time limit, for example), code that it passes through (the compiler,
 * PyTorch, a generator that is being closed) may take it for a failure and suppress it. So it is recorded when it
 * leaves the handler: the handler's vectorcall is replaced while the compiler runs. Only the main thread runs
 * handlers. */
#include "native.h"

typedef struct {
    PyFunctionObject *function; /* strong reference */
    vectorcallfunc before;     /* the function's original vectorcall */
} Watched;

static Watched *watched;
static Py_ssize_t count;
static unsigned long watcher; /* the thread whose handlers are watched, while `count` is not 0 */
static int handling;             /* number of handlers that are running: they may interrupt each other */
static PyObject *heard;          /* strong reference; the first exception of a handler, or NULL */
static PyObject *leave;          /* strong reference; sets the program's state; returns its undo function */
static vectorcallfunc ordinary; /* the vectorcall of ordinary functions; 3.13 does not export it */

static vectorcallfunc before_ours(PyObject *function) {
    for (Py_ssize_t i = 0; i < count; i++)
        if ((PyObject *)watched[i].function == function) return watched[i].before;
    return ordinary;
}

/* Whether these are the arguments of a signal handler (signal number, frame). The program may also call the function
 * itself. */
static int is_of_a_signal(PyObject *const *args, size_t flagged, PyObject *names) {
    Py_ssize_t given = PyVectorcall_NARGS(flagged);
    return !names && given >= 2 && PyThread_get_thread_ident() == watcher && PyLong_Check(args[given - 2]) &&
           (PyFrame_Check(args[given - 1]) || args[given - 1] == Py_None);
}

static PyObject *current_error(void) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (type) PyErr_NormalizeException(&type, &error, &traceback);
    if (error && traceback) PyException_SetTraceback(error, traceback);
    PyObject *found = Py_XNewRef(error);
    PyErr_Restore(type, error, traceback);
    return found;
}

/* Calls a handler in the program's state: its operations (when it saves a model, for example) must not be traced. */
static PyObject *call_as_the_program(vectorcallfunc call, PyObject *function, PyObject *const *args, size_t flagged) {
    PyObject *back = PyObject_CallNoArgs(leave);
    if (!back) return NULL;
    PyObject *result = call(function, args, flagged, NULL);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallNoArgs(back);
    Py_DECREF(back);
    if (!done) Py_CLEAR(result);
    if (type) PyErr_Restore(type, error, traceback); /* this error was raised first */
    Py_XDECREF(done);
    return result;
}

static PyObject *call_watched(PyObject *function, PyObject *const *args, size_t flagged, PyObject *names) {
    vectorcallfunc call = before_ours(function);
    if (!is_of_a_signal(args, flagged, names)) return call(function, args, flagged, names);
    PyObject *result = handling++ ? call(function, args, flagged, names)
                                  : call_as_the_program(call, function, args, flagged);
    if (!--handling && !result) Py_XSETREF(heard, current_error());
    return result;
}

void unwatch_handlers(void) {
    if (!watcher || watcher != PyThread_get_thread_ident()) return;
    Watched *old = watched;
    Py_ssize_t left = count;
    watched = NULL;
    count = handling = 0;
    watcher = 0;
    for (Py_ssize_t i = 0; i < left; i++)
        if (old[i].function->vectorcall == call_watched) old[i].function->vectorcall = old[i].before;
    for (Py_ssize_t i = 0; i < left; i++) Py_DECREF(old[i].function);
    PyMem_Free(old);
    Py_CLEAR(heard);
}

static int find_ordinary(void) {
    PyObject *code = ordinary ? NULL : (PyObject *)PyCode_NewEmpty("", "", 1);
    PyObject *globals = code ? PyDict_New() : NULL;
    PyObject *function = globals ? PyFunction_New(code, globals) : NULL;
    if (function) ordinary = ((PyFunctionObject *)function)->vectorcall;
    Py_XDECREF(function);
    Py_XDECREF(globals);
    Py_XDECREF(code);
    return ordinary ? 0 : -1;
}

PyObject *watch_handlers(PyObject *module, PyObject *args) {
    PyObject *functions, *outside;
    if (!PyArg_ParseTuple(args, "O!O:watch_handlers", &PyTuple_Type, &functions, &outside)) return NULL;
    unwatch_handlers();
    Py_ssize_t given = PyTuple_GET_SIZE(functions);
    if (watcher || !given) Py_RETURN_NONE;
    if (find_ordinary() < 0) return NULL;
    if (!(watched = PyMem_Calloc((size_t)given, sizeof(Watched)))) return PyErr_NoMemory();
    watcher = PyThread_get_thread_ident();
    Py_XSETREF(leave, Py_NewRef(outside));
    for (Py_ssize_t i = 0; i < given; i++) {
        PyFunctionObject *function = (PyFunctionObject *)PyTuple_GET_ITEM(functions, i);
        if (!PyFunction_Check(function) || function->vectorcall == call_watched) continue;
        watched[count++] = (Watched){(PyFunctionObject *)Py_NewRef(function), function->vectorcall};
        function->vectorcall = call_watched;
    }
    Py_RETURN_NONE;
}

static int has_heard(void) { return heard && PyThread_get_thread_ident() == watcher; }

PyObject *heard_from_handlers(PyObject *module, PyObject *ignored) { return Py_NewRef(has_heard() ? heard : Py_None); }

PyObject *arrives(PyObject *result) {
    if (!has_heard()) return result;
    PyObject *error = current_error();
    Py_XDECREF(error);
    if (error == heard) return result; /* it is being raised already */
    PyErr_Clear();
    Py_XDECREF(result);
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(heard)), Py_NewRef(heard), PyException_GetTraceback(heard));
    return NULL;
}
