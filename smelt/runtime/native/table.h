/* The pointer table of _native.c, for launchers in other files. */
#ifndef SMELT_TABLE_H
#define SMELT_TABLE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The slots of a Table and their number; NULL with a Python error set if the object is not a Table. */
char **smelt_table_slots(PyObject *table, Py_ssize_t *size);
#endif
