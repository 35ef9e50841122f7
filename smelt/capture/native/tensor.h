/* TensorSpec for the loop over guards: the expected metadata, and raw reads of a tensor's metadata. */
#ifndef SMELT_CAPTURE_TENSOR_H
#define SMELT_CAPTURE_TENSOR_H

#include "native.h"

/* maximum rank whose sizes and strides are inside of the TensorImpl; the calibration checks it */
enum { INLINE_DIMS = 5 };
enum { LOOK_AHEAD = 16 }; /* prefetch distance, in values */

typedef struct {
    int known;
    Py_ssize_t impl;                         /* in the PyObject: pointer to the TensorImpl */
    Py_ssize_t keys, dims, kind;             /* in the TensorImpl: dispatch keys; number of dims; dtype and device */
    uint64_t kind_mask;                      /* which bits at `kind` are dtype and device */
    unsigned char (*requires_grad)(void *);  /* TensorImpl const* -> bool */
    Py_ssize_t storage, storage_offset;      /* in the TensorImpl: pointer to the StorageImpl; 0: not known */
    Py_ssize_t data;                         /* in the StorageImpl: address of its memory */
    Py_ssize_t gradients;         /* in the TensorImpl: pointer to autograd's metadata, for prefetching; 0: not known */
    Py_ssize_t hooks, late_hooks; /* in the PyObject: _backward_hooks, _post_accumulate_grad_hooks; 0: not known */
} TensorLayout;

extern TensorLayout layout;

static const int64_t any = INT64_MIN; /* a size or stride that is not compared */

typedef struct {
    PyObject_HEAD
    PyTypeObject *type;
    PyObject *dtype, *device, *shape, *stride; /* shape, stride: tuples of int or None */
    uint64_t keys, kind;
    int64_t *wanted; /* ndim sizes, ndim strides, then the dimensions of `order` */
    PyObject *order; /* tuple of dimensions that are dense in memory, innermost first; NULL: not compared */
    int32_t ndim, ordered; /* ordered: length of `order` */
    int8_t requires_grad; /* -1: not compared */
    int8_t raw, is_float_on_cpu;
    int32_t itemsize;
} TensorSpec;

/* -- raw reads --------------------------------------------------------------------------------- */
static inline char *impl_of(PyObject *tensor) { return *(char **)((char *)tensor + layout.impl); }

static inline uint64_t word(const char *address) {
    uint64_t value;
    memcpy(&value, address, sizeof value);
    return value;
}

static inline const int64_t *sizes_of(const char *impl, int64_t ndim) {
    const char *at = impl + layout.dims + 8;
    return ndim <= INLINE_DIMS ? (const int64_t *)at : *(const int64_t *const *)at;
}

static inline const int64_t *strides_of(const int64_t *sizes, int64_t ndim) {
    return sizes + (ndim <= INLINE_DIMS ? INLINE_DIMS : ndim);
}

/* Whether the strides are those of a dense tensor, also of dimensions of size 0 or 1, whose strides are arbitrary but
 * determine the strides of results. */
static inline int is_dense_in_order(const TensorSpec *spec, const int64_t *sizes, const int64_t *strides) {
    const int64_t *order = spec->wanted + 2 * spec->ndim;
    int64_t expected = 1;
    for (int32_t i = 0; i < spec->ordered; i++) {
        int64_t dim = order[i];
        if (strides[dim] != expected) return 0;
        expected *= sizes[dim] > 1 ? sizes[dim] : 1;
    }
    return 1;
}

static inline int shape_matches(const TensorSpec *spec, const int64_t *sizes, const int64_t *strides) {
    const int64_t *wanted = spec->wanted, ndim = spec->ndim;
    for (int64_t i = 0; i < ndim; i++)
        if (sizes[i] != wanted[i] && wanted[i] != any) return 0;
    if (spec->ordered && !is_dense_in_order(spec, sizes, strides)) return 0;
    for (int64_t i = 0; spec->ordered < ndim && i < ndim; i++)
        if (strides[i] != wanted[ndim + i] && wanted[ndim + i] != any) return 0;
    return 1;
}

static inline int raw_matches(const TensorSpec *spec, PyObject *tensor) {
    char *impl = impl_of(tensor);
    if (!impl || word(impl + layout.keys) != spec->keys) return 0;
    if ((word(impl + layout.kind) & layout.kind_mask) != spec->kind) return 0;
    if (word(impl + layout.dims) != (uint64_t)spec->ndim) return 0;
    const int64_t *sizes = sizes_of(impl, spec->ndim);
    if (!shape_matches(spec, sizes, strides_of(sizes, spec->ndim))) return 0;
    return spec->requires_grad < 0 || !!layout.requires_grad(impl) == spec->requires_grad;
}

int slow_matches(TensorSpec *spec, PyObject *value); /* through Python; never leaves an exception */

static inline int spec_holds(TensorSpec *spec, PyObject *value) {
    if (Py_TYPE(value) != spec->type) return 0;
    return spec->raw ? raw_matches(spec, value) : slow_matches(spec, value);
}

#endif
