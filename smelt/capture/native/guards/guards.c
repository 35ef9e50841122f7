/* The Guards type, as Python uses it. steps.c compiles it, evaluate.c evaluates it. */
#include "guards.h"
#include <structmember.h>
#include <time.h>

#define AS_NAME(name) #name,
const char *const fetch_names[] = {FETCH_KINDS(AS_NAME)};
const char *const check_names[] = {CHECK_KINDS(AS_NAME)};
PyObject *name_training;

static PyObject *guards_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"fetches", "checks", "outputs", NULL};
    PyObject *fetches, *checks, *outputs;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO", names, &fetches, &checks, &outputs)) return NULL;
    Guards *guards = (Guards *)type->tp_alloc(type, 0);
    if (guards && (build_steps(guards, fetches, checks, outputs) < 0 || build_program(guards) < 0)) Py_CLEAR(guards);
    return (PyObject *)guards;
}

static int guards_traverse(Guards *guards, visitproc visit, void *arg) {
    Py_VISIT(guards->fetches);
    Py_VISIT(guards->checks);
    return 0;
}

static int guards_clear(Guards *guards) { /* the steps borrow from the tuples, so a cleared object always misses */
    Py_CLEAR(guards->fetches);
    Py_CLEAR(guards->checks);
    return 0;
}

static void guards_dealloc(Guards *guards) {
    PyObject_GC_UnTrack(guards);
    guards_clear(guards);
    Py_XDECREF(guards->outputs);
    for (Py_ssize_t i = 0; guards->check_steps && i < guards->check_count; i++) {
        PyMem_Free(guards->check_steps[i].numbers);
        shortcut_free(guards->check_steps[i].shortcut);
    }
    free_program(&guards->program);
    PyMem_Free(guards->fetch_steps);
    PyMem_Free(guards->check_steps);
    PyMem_Free(guards->output_steps);
    Py_TYPE(guards)->tp_free((PyObject *)guards);
}

Py_ssize_t guards_slot_bound(PyObject *guards) { return ((Guards *)guards)->slot_bound; }

PyObject *scope_builtins(PyObject *globals, PyObject *func) {
    if (func && PyFunction_Check(func)) return ((PyFunctionObject *)func)->func_builtins;
    PyObject *builtins = PyDict_GetItemString(globals, "__builtins__");
    if (builtins && PyModule_Check(builtins)) builtins = PyModule_GetDict(builtins);
    return builtins && PyDict_Check(builtins) ? builtins : PyEval_GetBuiltins();
}

/* Reads (slots, globals, func=None). */
static int read_scope(PyObject *const *args, Py_ssize_t count, Scope *scope) {
    if (count < 2 || count > 3 || !(PyTuple_Check(args[0]) || PyList_Check(args[0])) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "guards want (slots: tuple or list, globals: dict, func=None)");
        return -1;
    }
    PyObject *func = count == 3 && args[2] != Py_None ? args[2] : NULL;
    *scope = (Scope){.slots = PySequence_Fast_ITEMS(args[0]), .count = PySequence_Fast_GET_SIZE(args[0]), .func = func};
    scope->globals = args[1];
    scope->builtins = scope_builtins(args[1], func);
    return 0;
}

static PyObject *check(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Scope scope;
    PyObject *outputs;
    if (read_scope(args, count, &scope) < 0) return NULL;
    enum Outcome outcome = guards_evaluate(self, &scope, &outputs);
    if (outcome == HIT) return outputs;
    if (outcome == RAISED) return NULL;
    Py_RETURN_NONE;
}

static PyObject *failure(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Scope scope;
    Failure found = {0, 0, NULL};
    if (read_scope(args, count, &scope) < 0) return NULL;
    enum Outcome outcome = guards_explain(self, &scope, &found);
    if (outcome == HIT) Py_RETURN_NONE;
    if (outcome == RAISED || !found.value) {
        Py_XDECREF(found.value);
        return outcome == RAISED ? NULL : PyErr_NoMemory();
    }
    PyObject *item = found.is_check ? PyTuple_GET_ITEM(((Guards *)self)->checks, found.index) : NULL;
    if (item && PyLong_AsLong(PyTuple_GET_ITEM(item, 1)) == C_STATE) {
        Py_SETREF(found.value, state_now(NULL, NULL));
        if (!found.value) return NULL;
    }
    return Py_BuildValue("(snN)", found.is_check ? "check" : "fetch", found.index, found.value);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static PyObject *time_method(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Scope scope;
    Py_ssize_t number = count == 4 ? PyLong_AsSsize_t(args[3]) : -1;
    if (PyErr_Occurred()) return NULL;
    if (number < 0) return PyErr_Format(PyExc_TypeError, "time(slots, globals, func, n)");
    if (read_scope(args, 3, &scope) < 0) return NULL;
    Py_ssize_t rounds = number ? number : 1;
    double start = seconds();
    for (Py_ssize_t i = 0; i < rounds; i++) {
        PyObject *outputs = NULL;
        if (guards_evaluate(self, &scope, &outputs) != HIT)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the guards do not hold");
        Py_DECREF(outputs);
    }
    return PyFloat_FromDouble((seconds() - start) / (double)rounds);
}

static PyObject *guards_repr(Guards *guards) {
    return PyUnicode_FromFormat("<Guards: %zd fetches, %zd checks, %zd outputs>", guards->fetch_count,
                                guards->check_count, guards->output_count);
}

static PyMethodDef guards_methods[] = {
    {"check", METHOD(check), METH_FASTCALL, "check(slots, globals, func=None) -> outputs, or None when a guard fails"},
    {"failure", METHOD(failure), METH_FASTCALL,
     "failure(slots, globals, func=None) -> (\"fetch\" or \"check\", index, value), None when all hold"},
    {"time", METHOD(time_method), METH_FASTCALL, "time(slots, globals, func, n) -> seconds per evaluation"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef guards_members[] = {
    {"fetches", T_OBJECT, offsetof(Guards, fetches), READONLY, NULL},
    {"checks", T_OBJECT, offsetof(Guards, checks), READONLY, NULL},
    {"outputs", T_OBJECT, offsetof(Guards, outputs), READONLY, NULL},
    {"renewed", T_ULONGLONG, offsetof(Guards, program) + offsetof(Program, renewed), READONLY,
     "how often a dict or class was reread"},
    {NULL, 0, 0, 0, NULL},
};
PyTypeObject GuardsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.Guards",
    .tp_doc = "Guards(fetches, checks, outputs): a tree of fetches with their checks",
    .tp_basicsize = sizeof(Guards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = guards_new,
    .tp_dealloc = (destructor)guards_dealloc,
    .tp_traverse = (traverseproc)guards_traverse,
    .tp_clear = (inquiry)guards_clear,
    .tp_repr = (reprfunc)guards_repr,
    .tp_methods = guards_methods,
    .tp_members = guards_members,
};

/* -- names for Python -------------------------------------------------------------------------- */
static PyObject *add_names(PyObject *module, const char *const *names, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *name = PyUnicode_InternFromString(names[i]);
        if (name) PyTuple_SET_ITEM(tuple, i, name);
        if (!name || PyModule_AddIntConstant(module, names[i], (long)i) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

static int add_object(PyObject *module, const char *name, PyObject *object) { /* steals */
    int status = object ? PyModule_AddObjectRef(module, name, object) : -1;
    Py_XDECREF(object);
    return status;
}

int guards_ready(PyObject *module) {
    evaluate_ready();
    if (PyModule_AddIntConstant(module, "SHORT_DISJOINT", S_DISJOINT) < 0) return -1;
    if (PyModule_AddIntConstant(module, "SHORT_EQUAL_NUMBERS", S_EQUAL_NUMBERS) < 0) return -1;
    if (PyModule_AddIntConstant(module, "SHORT_NO_HOOKS", S_NO_HOOKS) < 0) return -1;
    name_training = PyUnicode_InternFromString("training");
    if (!name_training || PyObject_Hash(name_training) == -1) return -1;
    PyObject *ops = PyTuple_New(Z_GE + 1);
    for (Py_ssize_t i = 0; ops && i <= Z_GE; i++) PyTuple_SET_ITEM(ops, i, PyUnicode_FromString(size_ops[i]));
    if (add_object(module, "SIZE_OPS", ops) < 0) return -1;
    if (add_object(module, "FETCH_NAMES", add_names(module, fetch_names, FETCH_COUNT)) < 0) return -1;
    return add_object(module, "CHECK_NAMES", add_names(module, check_names, CHECK_COUNT));
}
