/* Loads and launches kernels through NVIDIA's driver, found at run time; see cuda.c. */
#ifndef SMELT_CUDA_H
#define SMELT_CUDA_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject smelt_driver_type, smelt_segment_type;

/* Adds the types and the exception CudaError to the module; -1 with a Python error set. */
int smelt_cuda_add(PyObject *module);
#endif
