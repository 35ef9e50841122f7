/* Native sufficient conditions for checks of kind PYTHON: see shortcuts.c. */
#ifndef SMELT_CAPTURE_SHORTCUTS_H
#define SMELT_CAPTURE_SHORTCUTS_H

#include "sizes.h"
#include "../tensor.h"

/* Python uses the position as the number of a shortcut, by names with the prefix "SHORT_". */
enum { S_DISJOINT, S_EQUAL_NUMBERS, S_NO_HOOKS, SHORTCUT_COUNT };

typedef struct Shortcut Shortcut;

/* Makes a shortcut; NULL with an exception. `specs`: the specs that the tensors match by earlier checks; not used by a
   program over sizes. */
Shortcut *shortcut_new(int which, PyObject *indices, TensorSpec **specs);
Shortcut *shortcut_of_sizes(PyObject *indices, PyObject *program);
void shortcut_free(Shortcut *shortcut);
int shortcut_holds(Shortcut *shortcut, PyObject **values); /* 1: the check holds; 0: not known */

#endif
