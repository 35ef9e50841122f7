/* Reads a dense CPU tensor's data pointer from C without linking torch: see tensor.c. */
#ifndef SMELT_TENSOR_H
#define SMELT_TENSOR_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The data pointer of a tensor object; NULL with a Python error set if it has no usable one. */
char *smelt_tensor_data(PyObject *tensor, int *failed);

/* Whether a tensor is known to be dense and its memory to contain its values: not of a subclass, not a lazy
   conjugate. */
int smelt_tensor_is_plain(PyObject *tensor);

/* The address of a tensor's StorageImpl, to prefetch it; NULL if it is not known, or not a tensor. */
const void *smelt_tensor_storage(PyObject *tensor);

/* Module functions: peek(object, words), peek_at(address, words), set_layout(...), data_ptr(tensor). */
extern PyMethodDef smelt_tensor_methods[];
#endif
