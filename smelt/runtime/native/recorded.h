/* Inputs and outputs of a recorded program; see recorded.c. */
#ifndef SMELT_RECORDED_H
#define SMELT_RECORDED_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject smelt_addresses_type, smelt_memory_type;
#endif
