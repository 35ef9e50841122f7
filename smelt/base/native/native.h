/* smelt.base._native: what its source files share.
 *   preserve.c  what an interrupted compilation leaves behind is put back; the module's table
 *   handlers.c  what handlers of signals raise meanwhile
 *   switched.c  a setting for the time of one call
 *   class_table.c  tables from classes by identity
 *   thread_end.c  threads that CPython ends at the end of the process */
#ifndef SMELT_BASE_NATIVE_H
#define SMELT_BASE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *watch_handlers(PyObject *module, PyObject *args);
PyObject *heard_from_handlers(PyObject *module, PyObject *ignored);
PyObject *arrives(PyObject *result); /* steals `result`; NULL with what a handler has raised, if one has */
PyObject *end_threads_alone(PyObject *module, PyObject *ignored);
PyObject *switched(PyObject *module, PyObject *const *args, Py_ssize_t count);
void unwatch_handlers(void);         /* in the thread that watches; in others nothing */

#endif
