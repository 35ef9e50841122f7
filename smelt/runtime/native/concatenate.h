/* Concatenation of many small tensors; see concatenate.c. */
#ifndef SMELT_CONCATENATE_H
#define SMELT_CONCATENATE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef smelt_concatenate_methods[];
#endif
