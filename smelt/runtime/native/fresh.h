/* New tensors on the heap of heap.h; see fresh.c. */
#ifndef SMELT_FRESH_H
#define SMELT_FRESH_H
#define PY_SSIZE_T_CLEAN
#include "../../base/native/dlpack.h"
#include <Python.h>

/* Makes a CPU tensor on the heap and gives the address of its data; the strides must be dense. Returns NULL without an
 * error set if the heap has no room. */
PyObject *smelt_fresh_tensor(int rank, const int64_t *shape, const int64_t *strides, Type type, void **data);

/* DLPack's exchange table; NULL before fresh_init succeeded. */
const Exchange *smelt_exchange(void);

extern PyTypeObject smelt_fresh_type;
extern PyMethodDef smelt_fresh_methods[];
#endif
