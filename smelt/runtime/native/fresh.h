/* New tensors on the heap of heap.h; see fresh.c. */
#ifndef SMELT_FRESH_H
#define SMELT_FRESH_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject smelt_fresh_type;
extern PyMethodDef smelt_fresh_methods[];
#endif
