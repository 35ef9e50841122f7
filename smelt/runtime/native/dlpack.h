/* What torch publishes as `torch.Tensor.__dlpack_c_exchange_api__`: the declarations follow the DLPack 1.x ABI. */
#ifndef SMELT_DLPACK_H
#define SMELT_DLPACK_H
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
    int (*borrow)(void *, Description *); /* of a tensor object, while it lives; may be NULL */
} Exchange;

enum { MAX_RANK = 16 };

/* The table; NULL before fresh_init succeeded. */
const Exchange *smelt_exchange(void);
#endif
