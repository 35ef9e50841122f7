/* The longer checks of guards: equality of constants, keys of dicts, identities, Python functions. */
#include "checks.h"
#include <math.h>

/* Whether the object is of one of CPython's immutable types, or a tuple of such objects. */
int is_immutable(PyObject *object) {
    if (object == Py_None || object == Py_Ellipsis || PyBool_Check(object) || PyLong_CheckExact(object) ||
        PyUnicode_CheckExact(object) || PyFloat_CheckExact(object) || PyBytes_CheckExact(object) ||
        PyComplex_CheckExact(object))
        return 1;
    if (!PyTuple_CheckExact(object)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++)
        if (!is_immutable(PyTuple_GET_ITEM(object, i))) return 0;
    return 1;
}

static PyObject *alike; /* (value, constant) -> bool, see set_equality */

PyObject *set_equality(PyObject *module, PyObject *function) {
    Py_XSETREF(alike, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* Whether equality is not enough to compare a value with this constant: ranges of the same numbers, 0.0 and -0.0 of
   numpy, and its dates are equal but distinguishable; a NaN of numpy is the same but not equal to itself. */
static inline int is_compared_by_more_than_value(PyObject *constant) {
    if (PyBytes_Check(constant) || PyTuple_Check(constant)) return 0;
    return alike && (PyRange_Check(constant) || Py_TYPE(constant)->tp_as_buffer);
}

/* Whether `==` of the object runs no Python code: immutable values, and objects of C classes without references to
 * other objects (torch.device, numbers of numpy, torch.Size). */
int is_plain_constant(PyObject *object) {
    if (is_immutable(object)) return 1;
    if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE || is_compared_by_more_than_value(object)) return 0;
    if (!PyTuple_Check(object)) return !PyObject_IS_GC(object);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++)
        if (!is_plain_constant(PyTuple_GET_ITEM(object, i))) return 0;
    return 1;
}

static inline int equal_floats(double a, double b) { return a == b ? signbit(a) == signbit(b) : a != a && b != b; }

static int equal_tuples(PyObject *value, PyObject *constant) {
    Py_ssize_t size = PyTuple_GET_SIZE(constant);
    int equal = PyTuple_GET_SIZE(value) == size;
    for (Py_ssize_t i = 0; equal > 0 && i < size; i++)
        equal = equal_constants(PyTuple_GET_ITEM(value, i), PyTuple_GET_ITEM(constant, i));
    return equal;
}

static int ask_alike(PyObject *value, PyObject *constant) {
    PyObject *args[] = {value, constant}, *answer = PyObject_Vectorcall(alike, args, 2, NULL);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

int equal_constants(PyObject *value, PyObject *constant) {
    if (value == constant) return 1;
    if (Py_TYPE(value) != Py_TYPE(constant)) return 0;
    if (PyUnicode_CheckExact(constant))
        return PyUnicode_GET_LENGTH(value) == PyUnicode_GET_LENGTH(constant) && PyUnicode_Compare(value, constant) == 0;
    if (PyFloat_CheckExact(constant)) return equal_floats(PyFloat_AS_DOUBLE(value), PyFloat_AS_DOUBLE(constant));
    if (PyComplex_CheckExact(constant)) {
        Py_complex a = ((PyComplexObject *)value)->cval, b = ((PyComplexObject *)constant)->cval;
        return equal_floats(a.real, b.real) && equal_floats(a.imag, b.imag);
    }
    if (PyTuple_CheckExact(constant)) return equal_tuples(value, constant);
    if (is_compared_by_more_than_value(constant)) return ask_alike(value, constant);
    return PyObject_RichCompareBool(value, constant, Py_EQ);
}

PyObject *instance_dict_method(PyObject *module, PyObject *object) {
    PyObject *dict = instance_dict(object);
    return Py_NewRef(dict ? dict : Py_None);
}

PyObject *name_in_c(PyObject *module, PyObject *type) {
    if (!PyType_Check(type)) return PyErr_Format(PyExc_TypeError, "name_in_c wants a type");
    return PyUnicode_FromString(((PyTypeObject *)type)->tp_name);
}

/* Whether an OrderedDict has these keys in its own order, which `move_to_end` changes without a change of the
 * underlying dict. */
static int has_ordered_keys(PyObject *dict, PyObject *keys) {
    PyObject *iterator = PyODict_Type.tp_iter(dict), *key;
    if (!iterator) return -1;
    int equal = 1;
    for (Py_ssize_t i = 0; equal > 0 && i < PyTuple_GET_SIZE(keys); i++) {
        key = PyIter_Next(iterator);
        equal = key ? equal_constants(key, PyTuple_GET_ITEM(keys, i)) : PyErr_Occurred() ? -1 : 0;
        Py_XDECREF(key);
    }
    Py_DECREF(iterator);
    return equal;
}

/* The value at position `index` in the order of the dict; NULL if there is none, or with an exception. */
PyObject *dict_value(PyObject *dict, Py_ssize_t index) {
    PyObject *key, *value = NULL;
    Py_ssize_t position = 0;
    if (!PyDict_Check(dict) || index < 0 || index >= PyDict_GET_SIZE(dict)) return NULL;
    if (!PyODict_Check(dict)) {
        for (Py_ssize_t i = 0; i <= index; i++)
            if (!PyDict_Next(dict, &position, &key, &value)) return NULL;
        return value;
    }
    PyObject *iterator = PyODict_Type.tp_iter(dict);
    if (!iterator) return NULL;
    for (Py_ssize_t i = 0; i <= index; i++) {
        key = PyIter_Next(iterator);
        value = key && i == index ? PyDict_GetItemWithError(dict, key) : NULL; /* borrowed from the dict */
        Py_XDECREF(key);
        if (!key) break;
    }
    Py_DECREF(iterator);
    return value;
}

int has_keys(PyObject *dict, PyObject *keys) {
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return 0;
    if (PyODict_Check(dict)) return has_ordered_keys(dict, keys);
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int equal = 1;
    for (Py_ssize_t i = 0; equal > 0 && i < PyTuple_GET_SIZE(keys); i++)
        equal = PyDict_Next(dict, &position, &key, &value) ? equal_constants(key, PyTuple_GET_ITEM(keys, i)) : 0;
    return equal;
}

/* Whether no two of the values are the same object. A hash set of addresses avoids a comparison of all pairs. */
int all_different(const int32_t *indices, size_t count, PyObject **values) {
    size_t size = 16;
    while (size < 2 * count) size *= 2;
    PyObject *few[512], **set = size <= 512 ? few : PyMem_Malloc(size * sizeof(PyObject *));
    if (!set) return 0;
    memset(set, 0, size * sizeof(PyObject *));
    int different = 1;
    for (size_t i = 0; different && i < count; i++) {
        PyObject *value = values[indices[i]];
        size_t bucket = ((uintptr_t)value >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (size - 1);
        while (set[bucket] && set[bucket] != value) bucket = (bucket + 1) & (size - 1);
        different = !set[bucket];
        set[bucket] = value;
    }
    if (set != few) PyMem_Free(set);
    return different;
}

int ask_python(PyObject *operand, PyObject *value, PyObject **values) {
    PyObject *answer;
    if (PyTuple_Check(operand)) {
        PyObject *indices = PyTuple_GET_ITEM(operand, 1), *args = PyTuple_New(PyTuple_GET_SIZE(indices));
        if (!args) return -1;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(indices); i++)
            PyTuple_SET_ITEM(args, i, Py_NewRef(values[PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, i))]));
        answer = PyObject_CallObject(PyTuple_GET_ITEM(operand, 0), args);
        Py_DECREF(args);
    } else answer = value ? PyObject_CallOneArg(operand, value) : PyObject_CallNoArgs(operand);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}
