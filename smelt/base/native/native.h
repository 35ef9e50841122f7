/* smelt.base._native: declarations that its source files share.
 *   preserve.c  restores process state after an interrupted compilation; defines the module
 *   handlers.c  exceptions of signal handlers during compilation
 *   switched.c  changes a thread's setting for one call
 *   class_table.c  maps from classes, by identity
 *   thread_end.c  threads that CPython ends at the end of the process */
#ifndef SMELT_BASE_NATIVE_H
#define SMELT_BASE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *watch_handlers(PyObject *module, PyObject *args);
PyObject *heard_from_handlers(PyObject *module, PyObject *ignored);
PyObject *arrives(PyObject *result); /* steals, returns `result`; NULL with a handler's exception, if any */
PyObject *end_threads_alone(PyObject *module, PyObject *ignored);
PyObject *switched(PyObject *module, PyObject *const *args, Py_ssize_t count);
void unwatch_handlers(void);         /* no effect in threads other than the watching one */

#endif
