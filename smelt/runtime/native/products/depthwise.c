/* See depthwise.h. A task computes the gradient of one block of channels: it reads all rows of these channels, one row
 * of the window at a time. If there are fewer blocks than threads need, the rows of the images are divided into shares
 * as well. Memory is allocated only for the partial sums of the shares. (oneDNN's kernel for this memory format takes
 * 256 floats of scratch memory for each weight, and is slower.) */
#include "depthwise.h"
#include "gemm.h"
#include "isa.h"
#include "../tensor.h"
#include "../threads.h"
#include <stdlib.h>
#include <string.h>

#define MAX_TAPS 7 /* elements of a window row at a time: twice as many registers contain their sums */
#define SERIAL 20000 /* number of multiplications that take less time than waking a thread */
#define MIN_ROWS 8 /* minimum number of gradient rows in a share */
#define CHAIN 256    /* approximate number of products in a chain; the sums of chains are then added, for accuracy */

/* The sizes and strides for the products of one gradient row with one row of x. */
typedef struct {
    int64_t columns, grad_column, x_column; /* x_column: distance in x between the windows of two columns */
    int64_t tap;                            /* distance in x between two elements of the window */
    int64_t inner, inner_end;               /* [inner, inner_end): columns whose window lies inside of the row */
    int64_t stride, padding, dilation, width;
} row_of;

typedef void (*row_kernel)(row_of r, const float *grad, const float *x, float *sums);
typedef struct {
    int width; /* floats per vector */
    row_kernel row[MAX_TAPS][2];
} row_kernels;

#if defined(__x86_64__)
#define TARGET SMELT_AVX512
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define WIDTH 16
#define ISA _avx512
#include "depthwise_tile.h"
#define TARGET SMELT_AVX2
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define WIDTH 8
#define ISA _avx2
#include "depthwise_tile.h"
#endif
#define TARGET
#define FMA(a, b, c) ((a) * (b) + (c))
#define WIDTH 4
#define ISA _plain
#include "depthwise_tile.h"
/* For fewer channels than the elements of a vector. */
#define TARGET
#define FMA(a, b, c) ((a) * (b) + (c))
#define WIDTH 1
#define ISA _single
#include "depthwise_tile.h"

/* The kernels with the widest vectors of this processor that `channels` fill. */
static const row_kernels *kernels_for(int64_t channels) {
#if defined(__x86_64__)
    const char *kind = smelt_gemm_kind();
    if (!strcmp(kind, "avx512") && channels >= rows_avx512.width) return &rows_avx512;
    if (strcmp(kind, "plain") && channels >= rows_avx2.width) return &rows_avx2;
#endif
    return channels >= rows_plain.width ? &rows_plain : &rows_single;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t clamp(int64_t value, int64_t end) { return least(most(value, 0), end); }

typedef struct {
    smelt_depthwise d;
    const row_kernels *kernels;
    const float *grad, *x;
    float *w, *partial_sums; /* partial_sums: [shares][channels][high][wide], or NULL if there is one share */
    int64_t block, blocks, shares, next;
} job;

/* The description of a row's columns for the `count` elements of a window row from element `s` on. */
static row_of row_for(const smelt_depthwise *d, int64_t s, int64_t count) {
    const int64_t padding = d->padding[1] - s * d->dilation[1], reach = (count - 1) * d->dilation[1];
    const int64_t first = up(most(padding, 0), d->stride[1]);
    const int64_t last = d->width - 1 - reach + padding; /* the last position of a window, from the padding's start */
    const int64_t end = last < 0 ? 0 : last / d->stride[1] + 1;
    return (row_of){d->columns, d->grad_column, d->x_column * d->stride[1], d->x_column * d->dilation[1],
                    clamp(first, d->columns), clamp(end, d->columns), d->stride[1], padding, d->dilation[1], d->width};
}

/* Adds to `sums` the sums of the rows [from, to) of all images, for `vectors` vectors of channels from `channel` on. */
static void add_rows(const job *j, int64_t channel, int vectors, int64_t from, int64_t to, float *sums) {
    const smelt_depthwise *d = &j->d;
    const int64_t groups = up(d->wide, MAX_TAPS);
    for (int64_t group = 0; group < groups; group++) {
        const int64_t s = d->wide * group / groups, taps = d->wide * (group + 1) / groups - s;
        const row_of row = row_for(d, s, taps);
        const row_kernel kernel = j->kernels->row[taps - 1][vectors - 1];
        for (int64_t i = from; i < to; i++) {
            const int64_t image = i / d->rows, y = i % d->rows;
            const float *grad = j->grad + image * d->grad_image + y * d->grad_row + channel;
            for (int64_t r = 0; r < d->high; r++) {
                const int64_t at = y * d->stride[0] - d->padding[0] + r * d->dilation[0];
                if (at < 0 || at >= d->height) continue;
                const float *x = j->x + image * d->x_image + at * d->x_row - row.padding * d->x_column + channel;
                kernel(row, grad, x, sums + (r * d->wide + s) * vectors * j->kernels->width);
            }
        }
    }
}

/* Computes the sums, [high][wide][lanes], of a share of the rows. `sums` has room for twice as many floats. */
static void sum_rows(const job *j, int64_t channel, int vectors, int64_t share, float *sums) {
    const smelt_depthwise *d = &j->d;
    const int64_t all = d->batch * d->rows, end = all * (share + 1) / j->shares, step = up(CHAIN, d->columns);
    const int64_t size = d->high * d->wide * vectors * j->kernels->width;
    float *chain = sums + size;
    memset(sums, 0, (size_t)size * sizeof(float));
    for (int64_t from = all * share / j->shares; from < end; from += step) {
        memset(chain, 0, (size_t)size * sizeof(float));
        add_rows(j, channel, vectors, from, least(from + step, end), chain);
        for (int64_t i = 0; i < size; i++) sums[i] += chain[i];
    }
}

/* Computes the channels [channel, channel + count) of a share of the rows. */
static void sum_block(const job *j, int64_t channel, int64_t count, int64_t share, float *sums) {
    const smelt_depthwise *d = &j->d;
    const int64_t width = j->kernels->width;
    while (count > 0) {
        const int vectors = count > width && d->channels >= 2 * width ? 2 : 1;
        const int64_t lanes = vectors * width, taken = least(count, lanes);
        /* a vector that would end after the last channel begins earlier: its first lanes are known already */
        const int64_t from = least(channel, d->channels - lanes), known = channel - from;
        sum_rows(j, from, vectors, share, sums);
        for (int64_t c = 0; c < taken; c++)
            for (int64_t r = 0; r < d->high; r++)
                for (int64_t s = 0; s < d->wide; s++) {
                    const float sum = sums[(r * d->wide + s) * lanes + known + c];
                    if (j->partial_sums)
                        j->partial_sums[((share * d->channels + channel + c) * d->high + r) * d->wide + s] = sum;
                    else
                        j->w[(channel + c) * d->w_channel + r * d->w_row + s * d->w_column] = sum;
                }
        channel += taken, count -= taken;
    }
}

static void run(void *data) {
    job *j = data;
    float sums[2 * j->d.high * j->d.wide * j->block];
    for (;;) {
        const int64_t task = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (task >= j->blocks * j->shares) return;
        const int64_t channel = task / j->shares * j->block;
        sum_block(j, channel, least(j->block, j->d.channels - channel), task % j->shares, sums);
    }
}

static void add_partial_sums(const job *j) {
    const smelt_depthwise *d = &j->d;
    const int64_t size = d->channels * d->high * d->wide;
    const float *partial = j->partial_sums;
    for (int64_t c = 0; c < d->channels; c++)
        for (int64_t r = 0; r < d->high; r++)
            for (int64_t s = 0; s < d->wide; s++, partial++) {
                float sum = 0;
                for (int64_t share = 0; share < j->shares; share++) sum += partial[share * size];
                j->w[c * d->w_channel + r * d->w_row + s * d->w_column] = sum;
            }
}

void smelt_depthwise_weight(const smelt_depthwise *d, const float *grad, const float *x, float *w) {
    job j = {.d = *d, .kernels = kernels_for(d->channels), .grad = grad, .x = x, .w = w, .shares = 1};
    const int64_t window = d->high * d->wide, rows = d->batch * d->rows;
    j.block = 2 * j.kernels->width;
    j.blocks = up(d->channels, j.block);
    const int threads = rows * d->columns * d->channels * window <= SERIAL ? 1 : smelt_threads_max();
    if (threads > 1 && j.blocks < 2 * threads) {
        j.shares = clamp(up(2 * threads, j.blocks), most(rows / MIN_ROWS, 1));
        j.partial_sums = j.shares > 1 ? malloc((size_t)(j.shares * d->channels * window) * sizeof(float)) : NULL;
        if (!j.partial_sums) j.shares = 1; /* without memory for partial sums: slower, but correct */
    }
    smelt_parallel(run, &j, (int)least(threads, j.blocks * j.shares));
    if (j.partial_sums) add_partial_sums(&j);
    free(j.partial_sums);
}

static PyObject *depthwise_weight(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != sizeof(smelt_depthwise)) {
        PyErr_SetString(PyExc_TypeError, "depthwise_weight takes (sizes, out, grad, x)");
        return NULL;
    }
    smelt_depthwise d;
    memcpy(&d, PyBytes_AS_STRING(args[0]), sizeof d);
    char *data[3];
    int failed = 0;
    for (int i = 0; i < 3 && !failed; i++) data[i] = smelt_tensor_data(args[i + 1], &failed);
    if (failed) return NULL;
    Py_BEGIN_ALLOW_THREADS
    smelt_depthwise_weight(&d, (const float *)data[1], (const float *)data[2], (float *)data[0]);
    Py_END_ALLOW_THREADS
    Py_INCREF(args[1]);
    return args[1];
}

PyMethodDef smelt_depthwise_methods[] = {
    {"depthwise_weight", (PyCFunction)(void (*)(void))depthwise_weight, METH_FASTCALL,
     "depthwise_weight(sizes, out, grad, x) -> out; sizes: the numbers of smelt_depthwise (native/depthwise.h)"},
    {NULL, NULL, 0, NULL},
};
