/* Native sufficient conditions for checks of kind PYTHON: see shortcuts.c. */
#ifndef SMELT_CAPTURE_SHORTCUTS_H
#define SMELT_CAPTURE_SHORTCUTS_H

#include "sizes.h"
#include "../tensor.h"

/* Order is the number that Python sees, as names with "SHORT_" before them. */
enum { S_DISJOINT, S_EQUAL_NUMBERS, S_NO_HOOKS, SHORTCUT_COUNT };

typedef struct Shortcut Shortcut;

/* NULL with an exception. If it is no program over sizes, `specs` are what the tensors have been checked to match. */
Shortcut *shortcut_new(int which, PyObject *indices, TensorSpec **specs);
Shortcut *shortcut_of_sizes(PyObject *indices, PyObject *program);
void shortcut_free(Shortcut *shortcut);
int shortcut_holds(Shortcut *shortcut, PyObject **values); /* 1: the check holds; 0: not known */

#endif
