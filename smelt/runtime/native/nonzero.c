/* Finds the indices of the nonzero elements of a small tensor. For a few thousand elements, the overhead of
 * torch.nonzero and torch.nonzero_static is longer than the search.
 *
 * Elements are compared as numbers, so that subnormal numbers are zero if the processor is set to flush them, as in
 * torch. The functions return None for other devices, lazy views, other dtypes, and tensors too large for one thread;
 * torch then finds the indices. */
#include "nonzero.h"
#include "../../base/native/dlpack.h"
#include "fresh.h"
#include "tensor.h"
#include <string.h>

enum { CPU = 1, INT = 0, UINT = 1, FLOAT = 2, BFLOAT = 4, COMPLEX = 5, BOOL = 6 };

typedef int64_t (*Row)(const char *from, int64_t count, int64_t step, int64_t *to);

/* Defines a function that returns the number of a row's nonzero elements and writes their indices to `to` unless it is
 * NULL. */
#define ROW(name, type, test)                                                                                          \
    static int64_t name(const char *from, int64_t count, int64_t step, int64_t *to) {                                  \
        int64_t found = 0;                                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            type v;                                                                                                    \
            memcpy(&v, from + i * step, sizeof v);                                                                     \
            if (!(test)) continue;                                                                                     \
            if (to) to[found] = i;                                                                                     \
            found++;                                                                                                   \
        }                                                                                                              \
        return found;                                                                                                  \
    }
typedef struct {
    float real, imaginary;
} Pair;
typedef struct {
    double real, imaginary;
} WidePair;

static inline float widened(uint16_t v) { /* converts a bfloat16 */
    const uint32_t bits = (uint32_t)v << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

ROW(row_1, uint8_t, v)
ROW(row_2, uint16_t, v)
ROW(row_4, uint32_t, v)
ROW(row_8, uint64_t, v)
ROW(row_half, uint16_t, v & 0x7fff)
ROW(row_bfloat, uint16_t, widened(v) != 0)
ROW(row_float, float, v != 0)
ROW(row_double, double, v != 0)
ROW(row_pair, Pair, v.real != 0 || v.imaginary != 0)
ROW(row_wide_pair, WidePair, v.real != 0 || v.imaginary != 0)

static Row row_of(Type type) {
    if (type.lanes != 1) return NULL;
    switch (type.code << 8 | type.bits) {
    case BOOL << 8 | 8:
    case INT << 8 | 8:
    case UINT << 8 | 8: return row_1;
    case INT << 8 | 16: return row_2;
    case INT << 8 | 32: return row_4;
    case INT << 8 | 64: return row_8;
    case FLOAT << 8 | 16: return row_half;
    case BFLOAT << 8 | 16: return row_bfloat;
    case FLOAT << 8 | 32: return row_float;
    case FLOAT << 8 | 64: return row_double;
    case COMPLEX << 8 | 64: return row_pair;
    case COMPLEX << 8 | 128: return row_wide_pair;
    }
    return NULL;
}

typedef struct {
    Description is;
    const char *data;
    Row row;
    int64_t count; /* number of elements */
} Elements;

/* Describes a tensor. Returns 1 if the functions of this file accept it, else 0; -1 with an error set. */
static int describe(PyObject *tensor, Elements *of) {
    const Exchange *exchange = smelt_exchange();
    if (!exchange || !exchange->borrow || !smelt_tensor_is_plain(tensor)) return 0;
    if (exchange->borrow(tensor, &of->is)) return -1;
    if (of->is.device.type != CPU || of->is.rank < 1 || of->is.rank > MAX_RANK) return 0;
    of->row = row_of(of->is.type);
    of->count = 1;
    for (int d = 0; d < of->is.rank; d++) of->count *= of->is.shape[d];
    of->data = (const char *)of->is.data + of->is.byte_offset;
    return of->row && of->count && of->count <= SMELT_NONZERO_MOST;
}

/* Writes the indices of at most `room` nonzero elements, in their order. `element_step` is the distance in words
 * between the indices of two elements, `dimension_step` between those of two dimensions. Returns the number of nonzero
 * elements, at most `room` if `to` is set; if it is NULL, they are only counted. */
static int64_t collect_indices(const Elements *of, int64_t room, int64_t *to, int64_t element_step,
                               int64_t dimension_step) {
    const int last = of->is.rank - 1;
    const int64_t width = of->is.type.bits / 8, inner = of->is.shape[last], step = of->is.strides[last] * width;
    int64_t at[MAX_RANK] = {0}, found = 0;
    int64_t chunk[256];
    for (;;) {
        const char *from = of->data;
        for (int d = 0; d < last; d++) from += at[d] * of->is.strides[d] * width;
        for (int64_t first = 0; first < inner; first += 256) {
            const int64_t count = inner - first < 256 ? inner - first : 256;
            int64_t more = of->row(from + first * step, count, step, to ? chunk : NULL);
            if (to && more > room - found) more = room - found;
            for (int64_t i = 0; to && i < more; i++) {
                int64_t *row = to + (found + i) * element_step;
                for (int d = 0; d < last; d++) row[d * dimension_step] = at[d];
                row[last * dimension_step] = first + chunk[i];
            }
            found += more;
        }
        int d = last - 1;
        while (d >= 0 && ++at[d] == of->is.shape[d]) at[d--] = 0;
        if (d < 0) return found;
    }
}

/* nonzero(tensor): like torch.nonzero. The result is stored by columns: the indices of one dimension are adjacent. */
static PyObject *nonzero(PyObject *module, PyObject *tensor) {
    (void)module;
    Elements of;
    const int taken = describe(tensor, &of);
    if (taken < 0) return NULL;
    if (!taken) Py_RETURN_NONE;
    const int64_t found = collect_indices(&of, 0, NULL, 0, 0);
    if (!found) Py_RETURN_NONE; /* the heap cannot allocate 0 bytes */
    const int64_t shape[2] = {found, of.is.rank}, strides[2] = {1, found};
    int64_t *to;
    PyObject *indices = smelt_fresh_tensor(2, shape, strides, (Type){INT, 64, 1}, (void **)&to);
    if (indices) collect_indices(&of, found, to, 1, found);
    return indices ? indices : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* nonzero_static(tensor, out, fill): like torch.nonzero_static with the size of `out`, which is stored by rows. */
static PyObject *nonzero_static(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "nonzero_static(tensor, out, fill)");
    const int64_t fill = PyLong_AsLongLong(args[2]);
    if (fill == -1 && PyErr_Occurred()) return NULL;
    Elements of, out;
    const int taken = describe(args[0], &of), given = taken > 0 ? describe(args[1], &out) : taken;
    if (given < 0) return NULL;
    if (!given || out.is.rank != 2 || out.is.shape[1] != of.is.rank || out.row != row_8) Py_RETURN_NONE;
    int64_t *to = (int64_t *)out.data;
    const int64_t rank = of.is.rank, found = collect_indices(&of, out.is.shape[0], to, rank, 1);
    for (int64_t i = found * rank; i < out.count; i++) to[i] = fill;
    return Py_NewRef(args[1]);
}

PyMethodDef smelt_nonzero_methods[] = {
    {"nonzero", nonzero, METH_O, "nonzero(tensor) -> what torch.nonzero gives; None: ask torch"},
    {"nonzero_static", (PyCFunction)(void (*)(void))nonzero_static, METH_FASTCALL,
     "nonzero_static(tensor, out, fill) -> out, with the indices of nonzero elements; None: ask torch"},
    {NULL, NULL, 0, NULL},
};
