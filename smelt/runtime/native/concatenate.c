/* Concatenates many small tensors, for which the checks of torch.cat take longer than the copies. */
#include "concatenate.h"
#include "tensor.h"
#include <stdint.h>
#include <string.h>

/* concatenate(sizes, out, tensors): sizes are 64-bit integers: the number of rows, then for each tensor the bytes of
 * its share of a row. All tensors are contiguous; the caller guarantees that they have these sizes. */
static PyObject *concatenate(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "concatenate(sizes: bytes, out, tensors: tuple)");
    const Py_ssize_t tensors = PyTuple_GET_SIZE(args[2]);
    const int64_t *sizes = (const int64_t *)PyBytes_AS_STRING(args[0]), rows = tensors ? sizes[0] : 0;
    if (PyBytes_GET_SIZE(args[0]) != (tensors + 1) * (Py_ssize_t)sizeof(int64_t))
        return PyErr_Format(PyExc_ValueError, "concatenate: sizes for %zd tensors are wanted", tensors);
    int64_t width = 0;
    for (Py_ssize_t i = 1; i <= tensors; i++) width += sizes[i];
    int failed = 0;
    char *to = smelt_tensor_data(args[1], &failed);
    for (Py_ssize_t i = 0; !failed && i < tensors; i++) {
        const int64_t bytes = sizes[i + 1];
        const char *from = bytes && rows ? smelt_tensor_data(PyTuple_GET_ITEM(args[2], i), &failed) : NULL;
        for (int64_t row = 0; from && row < rows; row++)
            memcpy(to + row * width, from + row * bytes, (size_t)bytes);
        to += bytes;
    }
    return failed ? NULL : Py_NewRef(args[1]);
}

PyMethodDef smelt_concatenate_methods[] = {
    {"concatenate", (PyCFunction)(void (*)(void))concatenate, METH_FASTCALL,
     "concatenate(sizes, out, tensors) -> out: rows, then the bytes that each tensor gives to a row"},
    {NULL, NULL, 0, NULL},
};
