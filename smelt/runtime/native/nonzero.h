/* The places of elements that are not zero, in one call; see nonzero.c. */
#ifndef SMELT_NONZERO_H
#define SMELT_NONZERO_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef smelt_nonzero_methods[];
#endif
