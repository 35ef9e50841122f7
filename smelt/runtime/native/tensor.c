/* Reads the data pointers of tensors, at about 3 ns each, without linking torch.
 *
 * At import, smelt/runtime/native_layout.py finds the words in which a tensor object stores its implementation
 * pointer, its dispatch key set, its storage and its storage offset. It checks the result on many tensors and passes
 * the offsets to set_layout. Tensors take the slow path, the Python callable `slow`, if their dispatch key set is not
 * that of a plain dense tensor of the CPU or of a GPU in use (subclasses with Python keys, conjugate or negative
 * views, sparse tensors, functorch wrappers), if they have a storage offset, or if their storage is copy-on-write or
 * has no memory. Before set_layout, all tensors take it. */
#include "tensor.h"
#include <stdint.h>

#define MAX_KEYS 8
static struct {
    int ready;
    int implementation, key, storage, offset; /* word in the Python object, then words in the TensorImpl */
    int data, deleter;                        /* words in the storage */
    uint64_t cow_deleter;
    uint64_t keys[MAX_KEYS];
    int key_count;
    PyTypeObject *tensor_type, *parameter_type;
    PyObject *slow;
} layout;

static char *slow_data(PyObject *tensor, int *failed) {
    if (!layout.slow) {
        PyErr_SetString(PyExc_RuntimeError, "smelt.runtime._native: set_layout was not called");
        *failed = 1;
        return NULL;
    }
    PyObject *address = PyObject_CallOneArg(layout.slow, tensor);
    char *data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    if (PyErr_Occurred()) *failed = 1;
    return data;
}

static inline int plain_key(uint64_t key) {
    for (int i = 0; i < layout.key_count; i++)
        if (layout.keys[i] == key) return 1;
    return 0;
}

/* The TensorImpl of a tensor that is not of a subclass; NULL if it is not known, or the object is not a tensor. */
static inline const uint64_t *implementation_of(PyObject *tensor) {
    PyTypeObject *type = Py_TYPE(tensor);
    const int known = layout.ready && (type == layout.tensor_type || type == layout.parameter_type);
    return known ? ((const uint64_t **)tensor)[layout.implementation] : NULL;
}

char *smelt_tensor_data(PyObject *tensor, int *failed) {
    const uint64_t *implementation = implementation_of(tensor);
    if (implementation) {
        const uint64_t *storage = (const uint64_t *)implementation[layout.storage];
        if (plain_key(implementation[layout.key]) && implementation[layout.offset] == 0 &&
            storage[layout.deleter] != layout.cow_deleter && storage[layout.data])
            return (char *)storage[layout.data];
    }
    return slow_data(tensor, failed);
}

int smelt_tensor_is_plain(PyObject *tensor) {
    const uint64_t *implementation = implementation_of(tensor);
    return implementation && plain_key(implementation[layout.key]);
}

const void *smelt_tensor_storage(PyObject *tensor) {
    const uint64_t *implementation = implementation_of(tensor);
    return implementation ? (const void *)implementation[layout.storage] : NULL;
}

/* Copies words of memory of a live object. Only the calibration calls it, with bounds that it knows. */
static PyObject *words_at(const uint64_t *words, int count) {
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) PyList_SET_ITEM(list, i, PyLong_FromUnsignedLongLong(words[i]));
    return list;
}

static PyObject *peek(PyObject *module, PyObject *args) {
    PyObject *object;
    int count;
    if (!PyArg_ParseTuple(args, "Oi", &object, &count)) return NULL;
    return words_at((const uint64_t *)object, count);
}

static PyObject *peek_at(PyObject *module, PyObject *args) {
    unsigned long long address;
    int count;
    if (!PyArg_ParseTuple(args, "Ki", &address, &count)) return NULL;
    return words_at((const uint64_t *)(uintptr_t)address, count);
}

static PyObject *set_layout(PyObject *module, PyObject *args) {
    PyObject *words, *keys, *tensor_type, *parameter_type, *slow;
    unsigned long long cow;
    if (!PyArg_ParseTuple(args, "OKOOOO", &words, &cow, &keys, &tensor_type, &parameter_type, &slow)) return NULL;
    layout.ready = 0;
    Py_INCREF(slow);
    Py_XSETREF(layout.slow, slow);
    if (words == Py_None) Py_RETURN_NONE; /* slow path for every tensor */
    if (!PyArg_ParseTuple(words, "iiiiii", &layout.implementation, &layout.key, &layout.storage, &layout.offset,
                          &layout.data, &layout.deleter))
        return NULL;
    if (!PyTuple_Check(keys) || PyTuple_GET_SIZE(keys) > MAX_KEYS)
        return PyErr_Format(PyExc_ValueError, "keys: a tuple of at most %d integers", MAX_KEYS);
    layout.key_count = (int)PyTuple_GET_SIZE(keys);
    for (int i = 0; i < layout.key_count; i++) layout.keys[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(keys, i));
    if (PyErr_Occurred()) return NULL;
    layout.cow_deleter = cow;
    Py_INCREF(tensor_type);
    Py_INCREF(parameter_type);
    layout.tensor_type = (PyTypeObject *)tensor_type;
    layout.parameter_type = (PyTypeObject *)parameter_type;
    layout.ready = 1;
    Py_RETURN_NONE;
}

static PyObject *data_ptr(PyObject *module, PyObject *tensor) {
    int failed = 0;
    char *data = smelt_tensor_data(tensor, &failed);
    return failed ? NULL : PyLong_FromVoidPtr(data);
}

static PyObject *aligned(PyObject *module, PyObject *const *tensors, Py_ssize_t count) {
    uintptr_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int failed = 0;
        if (tensors[i] != Py_None) all |= (uintptr_t)smelt_tensor_data(tensors[i], &failed);
        if (failed) return NULL;
    }
    return PyBool_FromLong(all % 16 == 0);
}

PyMethodDef smelt_tensor_methods[] = {
    {"aligned", (PyCFunction)(void (*)(void))aligned, METH_FASTCALL,
     "aligned(*tensors) -> bool: whether all begin at multiples of 16 bytes; None does"},
    {"peek", peek, METH_VARARGS, "peek(object, words) -> the first machine words of an object"},
    {"peek_at", peek_at, METH_VARARGS, "peek_at(address, words) -> machine words at an address"},
    {"set_layout", set_layout, METH_VARARGS,
     "set_layout(words | None, cow_deleter, keys, tensor_type, parameter_type, slow): see native_layout.py"},
    {"data_ptr", data_ptr, METH_O, "data_ptr(tensor) -> int: as Table.bind reads it"},
    {NULL, NULL, 0, NULL},
};
