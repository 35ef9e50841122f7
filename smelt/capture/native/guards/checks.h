/* Evaluation of one check. Included by the evaluation loop; longer checks are in checks.c. */
#ifndef SMELT_CAPTURE_CHECKS_H
#define SMELT_CAPTURE_CHECKS_H

#include "reads.h"
#include "../tensor.h"

int has_keys(PyObject *dict, PyObject *keys);
int all_different(const int32_t *indices, size_t count, PyObject **values);
int ask_python(PyObject *operand, PyObject *value, PyObject **values);

/* Whether the container has this length. Reads its C fields, as fetches of items do, and does not call `__len__` of
   subclasses, which could run Python code. */
static inline int has_length(PyObject *value, Py_ssize_t length) {
    if (PyList_Check(value) || PyTuple_Check(value)) return Py_SIZE(value) == length;
    if (PyDict_Check(value)) return PyDict_GET_SIZE(value) == length;
    if (PyAnySet_Check(value)) return PySet_GET_SIZE(value) == length;
    if (PyUnicode_Check(value)) return PyUnicode_GET_LENGTH(value) == length;
    return PyBytes_Check(value) && PyBytes_GET_SIZE(value) == length;
}

static inline int in_range(PyObject *value, Py_ssize_t low, Py_ssize_t high) {
    if (!PyLong_CheckExact(value)) return 0;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && low <= number && number <= high;
}

static inline int key_state(PyObject *dict, PyObject *key, Py_hash_t hash, int wanted) {
    if (!PyDict_Check(dict)) return 0;
    PyObject *found = _PyDict_GetItem_KnownHash(dict, key, hash);
    return !found && PyErr_Occurred() ? -1 : !!found == wanted;
}

static inline int module_is(PyObject *dict, Py_ssize_t training, PyObject *names, int32_t *hints) {
    if (!dict) return 0;
    PyObject *wanted = training ? Py_True : Py_False;
    if (training >= 0 && hinted_item(dict, name_training, name_hash(name_training), &hints[0]) != wanted) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *member = hinted_item(dict, name, name_hash(name), &hints[i + 1]);
        if (!member || !PyDict_Check(member) || PyDict_GET_SIZE(member)) return 0;
    }
    return 1;
}

/* fields: (code, defaults or None, keyword defaults or None) */
static inline int function_is(PyObject *value, PyObject *fields) {
    if (!PyFunction_Check(value)) return 0;
    const PyFunctionObject *function = (PyFunctionObject *)value;
    PyObject *defaults = function->func_defaults, *named = function->func_kwdefaults;
    return function->func_code == PyTuple_GET_ITEM(fields, 0) &&
           (defaults ? defaults : Py_None) == PyTuple_GET_ITEM(fields, 1) &&
           (named ? named : Py_None) == PyTuple_GET_ITEM(fields, 2);
}

/* Evaluates a check: 1 if it holds; 0, or -1 with an exception, if it does not; DEAD if it can never hold again. */
static inline int holds(const CheckStep *step, PyObject *value, PyObject **values) {
    switch (step->kind) {
    case C_IS: return value == step->operand;
    case C_IS_NOT: return value != step->operand;
    case C_TYPE_IS: return (PyObject *)Py_TYPE(value) == step->operand;
    case C_EQ: return equal_constants(value, step->operand);
    case C_LEN: return has_length(value, step->number);
    case C_RANGE: return in_range(value, step->number, step->high);
    case C_DICT_KEYS: return has_keys(value, step->operand);
    case C_HAS_KEY: return key_state(value, step->operand, step->high, 1);
    case C_NOT_KEY: return key_state(value, step->operand, step->high, 0);
    case C_MISSING: return value == smelt_null;
    case C_WEAK_IS: {
        PyObject *target = weak_target(step->operand);
        return target ? value == target : DEAD;
    }
    case C_TENSOR: return spec_holds((TensorSpec *)step->operand, value);
    case C_ALIASED: return value == values[step->number];
    case C_NOT_ALIASED: return value != values[step->number];
    case C_NONE_ALIASED: return all_different(step->numbers, (size_t)PyTuple_GET_SIZE(step->operand), values);
    case C_STATE: return state_matches(step->operand);
    case C_MODULE: return module_is(values[step->high], step->number, step->operand, step->numbers);
    case C_PYTHON:
        if (step->shortcut && shortcut_holds(step->shortcut, values)) return 1;
        return ask_python(step->operand, value, values);
    case C_FUNCTION: return function_is(value, step->operand);
    case C_NO_FINALIZER: return !finalizes(value);
    }
    Py_UNREACHABLE();
}

#endif
