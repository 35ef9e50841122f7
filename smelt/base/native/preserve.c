/* Restores process state after a failure of the compiler. This is done in C, with the trace function disabled and a
 * reserve of recursion depth, and is repeated if an interrupt ends it early. */
#include "class_table.h"
#include "native.h"

enum { HEADROOM = 200, ATTEMPTS = 8 };

static PyObject *preserver; /* strong reference; NULL: nothing is preserved */
static PyObject *found;     /* strong reference; state shared by threads in `preserving`, emptied by the last one */
static long threads_inside;
static _Thread_local long depth; /* number of nested calls of preserving() in this thread */

static inline int *frames_left(PyThreadState *state) {
#if PY_VERSION_HEX >= 0x030c0000
    return &state->py_recursion_remaining;
#else
    return &state->recursion_remaining;
#endif
}

/* Calls saved(error), where error is the exception that ended the call, or None. */
static PyObject *restore_once(PyObject *saved, PyObject *error) {
    PyThreadState *state = PyThreadState_Get();
    *frames_left(state) += HEADROOM;
    PyThreadState_EnterTracing(state);
    PyObject *done = PyObject_CallOneArg(saved, error ? error : Py_None);
    PyThreadState_LeaveTracing(state);
    *frames_left(state) -= HEADROOM;
    return done;
}

/* Calls saved(error) until it returns without an exception, at most ATTEMPTS times. Steals `result`; returns it, or
 * NULL with the first exception. */
static PyObject *restore(PyObject *saved, PyObject *result) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (type) PyErr_NormalizeException(&type, &error, &traceback);
    if (error && traceback) PyException_SetTraceback(error, traceback);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        PyObject *done = restore_once(saved, error);
        if (done) {
            Py_DECREF(done);
            break;
        }
        Py_CLEAR(result);
        if (type && attempt == ATTEMPTS - 1) PyErr_WriteUnraisable(saved); /* a bug, or out of memory */
        else if (type) PyErr_Clear(); /* only the first exception is raised */
        else {
            PyErr_Fetch(&type, &error, &traceback);
            PyErr_NormalizeException(&type, &error, &traceback);
        }
    }
    PyErr_Restore(type, error, traceback);
    return result;
}

static PyObject *preserved(PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *saved = preserver ? PyObject_CallNoArgs(preserver) : Py_NewRef(Py_None);
    if (!saved) return NULL;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    if (saved != Py_None) result = restore(saved, result);
    Py_DECREF(saved);
    return result;
}

static PyObject *preserving(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "preserving() needs a function");
    threads_inside += !depth++;
    PyObject *result = arrives(preserved(args, count, names));
    if (depth == 1) unwatch_handlers();
    /* in one step, so that a thread that enters at this time gets either the state of the others or none */
    if (!--depth && !--threads_inside && found) PyDict_Clear(found);
    return result;
}

static PyObject *inside(PyObject *module, PyObject *ignored) { return Py_BuildValue("(ll)", depth, threads_inside); }

static PyObject *forget_other_threads(PyObject *module, PyObject *ignored) {
    threads_inside = depth > 0;
    if (!threads_inside && found) PyDict_Clear(found);
    Py_RETURN_NONE;
}

static PyObject *set_preserver(PyObject *module, PyObject *args) {
    PyObject *take, *shared;
    if (!PyArg_ParseTuple(args, "OO!:set_preserver", &take, &PyDict_Type, &shared)) return NULL;
    if (take != Py_None && !PyCallable_Check(take))
        return PyErr_Format(PyExc_TypeError, "a preserver must be callable or None, not %s", Py_TYPE(take)->tp_name);
    Py_XSETREF(preserver, take == Py_None ? NULL : Py_NewRef(take));
    Py_XSETREF(found, Py_NewRef(shared));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"preserving", (PyCFunction)(void (*)(void))preserving, METH_FASTCALL | METH_KEYWORDS,
     "preserving(fn, *args, **kwargs): fn(...); what the preserver saved before is restored after it"},
    {"inside", inside, METH_NOARGS, "how many calls of preserving() this thread is inside of, and how many threads are"},
    {"forget_other_threads", forget_other_threads, METH_NOARGS, "they are gone: the process has been forked"},
    {"watch_handlers", watch_handlers, METH_VARARGS,
     "watch_handlers(functions, leave): handlers of signals; until the outermost call of preserving() ends, what they "
     "raise is raised at the end of each; each runs between leave() and a call of what that gave"},
    {"heard_from_handlers", heard_from_handlers, METH_NOARGS,
     "what a handler of a signal has raised since it is watched, or None"},
    {"end_threads_alone", end_threads_alone, METH_NOARGS,
     "from here on a thread that CPython ends at the end of the process does not abort it; whether C++ is there"},
    {"set_preserver", set_preserver, METH_VARARGS,
     "set_preserver(take or None, found): take() gives restore(error or None), which is called until it returns; the dict "
     "`found` is emptied when no thread is inside any more"},
    {"switched", (PyCFunction)(void (*)(void))switched, METH_FASTCALL,
     "switched(read, write, during, fn, *args): fn(*args) between write(during) and write(what read() gave before)"},
    {"isinstance", (PyCFunction)(void (*)(void))isinstance_method, METH_FASTCALL,
     "isinstance(object, class or tuple): by the object's class, without a look at its `__class__`"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "smelt.base._native",
    .m_doc = "What an interrupted compilation leaves behind is put back; tables of classes.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && class_table_ready(module) < 0) Py_CLEAR(module);
    return module;
}
