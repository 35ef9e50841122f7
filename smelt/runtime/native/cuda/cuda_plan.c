/* Reads launches from Python objects into memory that the launcher walks without Python. */
#include "cuda_plan.h"
#include <string.h>

enum { MAX_PARAMETERS = 1024 };

int smelt_read_argument(PyObject *object, smelt_argument *to, Py_ssize_t *slots) {
    if (PyTuple_Check(object)) {
        long long slot, bytes;
        if (!PyArg_ParseTuple(object, "LL", &slot, &bytes)) return 0;
        if (slot < 0) {
            PyErr_Format(PyExc_ValueError, "slot %lld", slot);
            return 0;
        }
        *to = (smelt_argument){slot, bytes};
        if (slot >= *slots) *slots = (Py_ssize_t)slot + 1;
        return 1;
    }
    *to = (smelt_argument){-1, PyLong_AsLongLong(object)};
    return !PyErr_Occurred();
}

static int read_launch(PyObject *object, smelt_plan *to, smelt_launch *launch, Py_ssize_t *arguments) {
    const char *name;
    unsigned long long function;
    PyObject *given;
    int appended;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a launch is a tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(object, "sK(III)IIO!i", &name, &function, &launch->grid[0], &launch->grid[1],
                          &launch->grid[2], &launch->threads, &launch->shared, &PyTuple_Type, &given, &appended))
        return 0;
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (appended < 0 || count + appended > MAX_PARAMETERS) {
        PyErr_Format(PyExc_ValueError, "kernel '%s' has %zd parameters", name, count + appended);
        return 0;
    }
    launch->name = PyMem_Malloc(strlen(name) + 1);
    const size_t room = (size_t)(*arguments + count + appended + 1);
    smelt_argument *grown = PyMem_Realloc(to->arguments, room * sizeof(smelt_argument));
    if (grown) to->arguments = grown;
    if (!launch->name || !grown) {
        PyErr_NoMemory();
        return 0;
    }
    strcpy(launch->name, name);
    launch->function = (void *)(uintptr_t)function;
    launch->first = *arguments;
    launch->count = count + appended;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!smelt_read_argument(PyTuple_GET_ITEM(given, i), &to->arguments[*arguments + i], &to->slots)) return 0;
    for (Py_ssize_t i = count; i < launch->count; i++) to->arguments[*arguments + i] = (smelt_argument){-1, 0};
    *arguments += launch->count;
    if (launch->count > to->parameters) to->parameters = launch->count;
    return 1;
}

void smelt_free_plan(smelt_plan *p) {
    for (Py_ssize_t i = 0; p->launches && i < p->count; i++) PyMem_Free(p->launches[i].name);
    PyMem_Free(p->launches);
    PyMem_Free(p->arguments);
    *p = (smelt_plan){0};
}

int smelt_read_plan(PyObject *plan, smelt_plan *to) {
    Py_ssize_t arguments = 0;
    to->count = PyTuple_GET_SIZE(plan);
    to->launches = PyMem_Calloc((size_t)to->count + 1, sizeof(smelt_launch));
    if (!to->launches) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < to->count; i++)
        if (!read_launch(PyTuple_GET_ITEM(plan, i), to, &to->launches[i], &arguments)) {
            smelt_free_plan(to);
            return 0;
        }
    return 1;
}
