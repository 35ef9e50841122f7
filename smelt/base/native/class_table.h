#ifndef SMELT_BASE_CLASS_TABLE_H
#define SMELT_BASE_CLASS_TABLE_H

#include "native.h"

int class_table_ready(PyObject *module);
PyObject *isinstance_method(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
