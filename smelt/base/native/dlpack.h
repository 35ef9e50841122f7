/* The exchange table that torch publishes as `torch.Tensor.__dlpack_c_exchange_api__`, by the DLPack 1.x ABI. */
#ifndef SMELT_DLPACK_H
#define SMELT_DLPACK_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    uint32_t major, minor;
} Version;
typedef struct {
    int32_t type, index;
} Device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} Type;
typedef struct {
    void *data;
    Device device;
    int32_t rank;
    Type type;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Description;
typedef struct Managed {
    Version version;
    void *context;
    void (*deleter)(struct Managed *);
    uint64_t flags;
    Description tensor;
} Managed;
typedef struct Exchange {
    Version version;
    struct Exchange *older;
    void *allocate, *from_python;
    int (*to_python)(Managed *, void **);
    int (*borrow)(void *, Description *); /* describes a tensor object; valid while that exists; may be NULL */
} Exchange;

enum { MAX_RANK = 16 };

/* The exchange table of `torch.Tensor`; NULL if this torch has none, or one of another major version. */
static inline const Exchange *smelt_exchange_of(PyObject *tensor_type) {
    PyObject *capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
    const Exchange *table = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule);
    PyErr_Clear();
    return table && table->version.major == 1 ? table : NULL;
}
#endif
