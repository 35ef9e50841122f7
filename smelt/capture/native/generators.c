/* Makes real generators, suspended at a `yield`, for generators that capture has interpreted and that outlive the
   capture. */
#include "native.h"
#include "versions.h"

static PyObject *closure_of(PyCodeObject *code, PyObject *slots) {
    Py_ssize_t first = code->co_nlocalsplus - code->co_nfreevars;
    PyObject *closure = PyTuple_New(code->co_nfreevars);
    for (Py_ssize_t i = 0; closure && i < code->co_nfreevars; i++)
        PyTuple_SET_ITEM(closure, i, Py_NewRef(PyList_GET_ITEM(slots, first + i)));
    return closure;
}

/* Makes a generator of `code` that has not started and whose arguments are unset. */
static PyObject *fresh_generator(PyCodeObject *code, PyObject *globals, PyObject *slots) {
    PyCodeObject *callable = code_without_arguments(code);
    PyObject *function = callable ? PyFunction_New((PyObject *)callable, globals) : NULL;
    PyObject *closure = function && code->co_nfreevars ? closure_of(code, slots) : NULL, *generator = NULL;
    if (function && (!code->co_nfreevars || (closure && PyFunction_SetClosure(function, closure) == 0)))
        generator = PyObject_CallNoArgs(function);
    Py_XDECREF(closure);
    Py_XDECREF(function);
    Py_XDECREF(callable);
    return generator;
}

static void fill(Frame *frame, Py_ssize_t at, PyObject *values) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyObject *value = PyList_GET_ITEM(values, i), *before = frame->localsplus[at + i];
        frame->localsplus[at + i] = value == smelt_null ? NULL : Py_NewRef(value);
        Py_XDECREF(before);
    }
}

static PyObject *generator_at(PyObject *module, PyObject *args) {
    PyCodeObject *code;
    PyObject *globals, *slots, *stack;
    int offset, delegating;
    if (!PyArg_ParseTuple(args, "O!O!O!O!ip", &PyCode_Type, &code, &PyDict_Type, &globals, &PyList_Type, &slots,
                          &PyList_Type, &stack, &offset, &delegating))
        return NULL;
    if (!(code->co_flags & CO_GENERATOR) || PyList_GET_SIZE(slots) != code->co_nlocalsplus ||
        PyList_GET_SIZE(stack) > code->co_stacksize || offset >= Py_SIZE(code) * 2)
        return PyErr_Format(PyExc_ValueError, "this does not fit the generator function %U", code->co_name);
    if (!slots_are_cells(code, slots)) return NULL;
    PyObject *generator = fresh_generator(code, globals, slots);
    if (!generator || !PyGen_CheckExact(generator)) return generator;
    PyGenObject *self = (PyGenObject *)generator;
    Frame *frame = (Frame *)self->gi_iframe;
    fill(frame, 0, slots);
    if (offset < 0) return generator; /* not started */
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(stack); i++) frame->localsplus[code->co_nlocalsplus + i] = NULL;
    fill(frame, code->co_nlocalsplus, stack);
    frame->stacktop = (int)(code->co_nlocalsplus + PyList_GET_SIZE(stack));
    FRAME_SET_NEXT(frame, _PyCode_CODE(FRAME_CODE(frame)) + offset / (int)sizeof(_Py_CODEUNIT));
    self->gi_frame_state = FRAME_SUSPENDED;
#if PY_VERSION_HEX >= 0x030d0000
    if (delegating) self->gi_frame_state = FRAME_SUSPENDED_YIELD_FROM;
#endif
    return generator;
}

PyMethodDef generators_methods[] = {
    {"generator_at", generator_at, METH_VARARGS,
     "generator_at(code, globals, slots, stack, offset, delegating): a generator suspended before `offset`"},
    {NULL, NULL, 0, NULL},
};
