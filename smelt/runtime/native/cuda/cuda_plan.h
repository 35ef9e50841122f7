/* A plan is a tuple of launches
 *     (name, function, (x, y, z), threads, shared, arguments, appended).
 * Its arguments are (slot, bytes), a pointer at an offset from a slot of the table, or an integer. Then come
 * `appended` null pointers. */
#ifndef SMELT_CUDA_PLAN_H
#define SMELT_CUDA_PLAN_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    int64_t slot, value; /* slot -1: the argument is `value` itself */
} smelt_argument;
typedef struct {
    char *name;
    void *function;
    unsigned grid[3], threads, shared;
    Py_ssize_t first, count;
} smelt_launch;
typedef struct {
    smelt_launch *launches;
    smelt_argument *arguments;
    Py_ssize_t count, slots, parameters;
} smelt_plan;

/* Reads an argument and raises `slots` to the number of slots that it needs. Returns 1; 0 with a Python error set. */
int smelt_read_argument(PyObject *object, smelt_argument *to, Py_ssize_t *slots);
/* Reads a plan. Returns 1; 0 with a Python error set, and `to` is empty. */
int smelt_read_plan(PyObject *plan, smelt_plan *to);
void smelt_free_plan(smelt_plan *plan);
#endif
