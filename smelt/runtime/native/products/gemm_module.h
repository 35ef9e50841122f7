/* Python interface of the matrix product; see gemm_module.c. */
#ifndef SMELT_GEMM_MODULE_H
#define SMELT_GEMM_MODULE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject smelt_gemm_type;
extern PyMethodDef smelt_gemm_methods[];
#endif
