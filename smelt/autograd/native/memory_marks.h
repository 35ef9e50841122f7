/* Tensors described by a few bytes each; see memory_marks.c. */
#ifndef SMELT_MEMORY_MARKS_H
#define SMELT_MEMORY_MARKS_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef memory_marks_methods[];
#endif
