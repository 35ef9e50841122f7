/* Finds the indices of nonzero elements in one call; see nonzero.c. */
#ifndef SMELT_NONZERO_H
#define SMELT_NONZERO_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { SMELT_NONZERO_MOST = 1 << 15 }; /* maximum number of elements; up to it, one thread is as fast as several */

extern PyMethodDef smelt_nonzero_methods[];
#endif
