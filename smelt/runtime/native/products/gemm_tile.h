/* The register tile, written once for all instruction sets. The includer defines
 *   TARGET   function attribute that enables the instructions
 *   FMA      a * b + c on vectors (named, because -std=c11 forbids the compiler to form it)
 *   WIDTH    floats per vector
 *   ROWS     maximum number of rows (at most SMELT_MAX_ROWS)
 *   ISA      suffix of the names
 * Tiles keep rows x 2 vectors of C in registers for the whole k loop: 14 x 2 of 32 registers with AVX-512, 6 x 2 of 16
 * with AVX2 (the other registers contain a row of B and one broadcast element of A). */
#include "gemm.h"
#include "isa.h"

#define INLINE static inline __attribute__((always_inline)) TARGET
typedef float vector __attribute__((vector_size(WIDTH * 4)));
typedef float in_memory __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias)); /* unaligned */
#define AT(p) (*(in_memory *)(p))
#define READ(p) ((vector)(*(const in_memory *)(p)))
/* Prevents the compiler from rewriting the row pointers into fourteen, for which there are not enough registers. */
#define KEEP(p, q, r, s, t) __asm__("" : "+r"(p), "+r"(q), "+r"(r), "+r"(s), "+r"(t))
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

INLINE void tile_body(const int rows, const int vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                      const float *b, int64_t b_step, float *c, int64_t c_step, const float *bias, int accumulate) {
    const vector zero = {0};
    /* every third row has a pointer, and x86's scaled index reaches the two rows after it: so all fit in registers */
    const float *a0 = a, *a3 = a + 3 * a_row, *a6 = a + 6 * a_row, *a9 = a + 9 * a_row, *a12 = a + 12 * a_row;
#define ELEMENT(i) (i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : i < 12 ? a9 : a12)[i % 3 * a_row]
    const vector start0 = bias ? READ(bias) : zero;
    const vector start1 = bias && vectors > 1 ? READ(bias + WIDTH) : zero;
#define DECLARE(i) vector c0_##i = start0, c1_##i = start1;
    EACH_ROW(DECLARE)
    /* C is accessed only at the end: its lines are prefetched here for writing (15 to 40 % faster on large results) */
#define OWN(i) \
    if (rows > i) __builtin_prefetch(c + i * c_step, 1), __builtin_prefetch(c + i * c_step + vectors * WIDTH - 1, 1);
    EACH_ROW(OWN)
    for (int64_t p = 0; p < k; p++) {
        const vector b0 = READ(b);
        const vector b1 = vectors > 1 ? READ(b + WIDTH) : zero;
#define STEP(i)                                      \
    if (rows > i) {                                  \
        const vector each = ELEMENT(i) - zero;       \
        c0_##i = FMA(each, b0, c0_##i);              \
        if (vectors > 1) c1_##i = FMA(each, b1, c1_##i); \
    }
        EACH_ROW(STEP)
        a0 += a_step, a3 += a_step, a6 += a_step, a9 += a_step, a12 += a_step;
        b += b_step;
        KEEP(a0, a3, a6, a9, a12);
    }
#define STORE(i)                                                                   \
    if (rows > i) {                                                                \
        float *row = c + i * c_step;                                               \
        AT(row) = accumulate ? c0_##i + READ(row) : c0_##i;                        \
        if (vectors > 1) AT(row + WIDTH) = accumulate ? c1_##i + READ(row + WIDTH) : c1_##i; \
    }
    EACH_ROW(STORE)
}

#define TILE(r, v)                                                                                                   \
    static TARGET void JOIN(JOIN(tile_##r##_, v), ISA)(int64_t k, const float *a, int64_t a_row, int64_t a_step,      \
                                                       const float *b, int64_t b_step, float *c, int64_t c_step,     \
                                                       const float *bias, int accumulate) {                          \
        tile_body(r, v, k, a, a_row, a_step, b, b_step, c, c_step, bias, accumulate);                                \
    }
#define BOTH(r) TILE(r, 1) TILE(r, 2)
#define ENTRY(r) {JOIN(tile_##r##_1, ISA), JOIN(tile_##r##_2, ISA)},
