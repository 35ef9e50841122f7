/* Multiplies one row of the gradient by one row of x; written once for all instruction sets. The includer defines
 * TARGET, FMA, WIDTH and ISA as for gemm_tile.h.
 *
 * The sums of up to MAX_TAPS neighbouring elements of the window stay in registers along the row, for one or two
 * vectors of channels; between rows they are in memory. */
typedef float JOIN(vector, ISA) __attribute__((vector_size(WIDTH * 4)));
typedef float JOIN(in_memory, ISA) __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias)); /* unaligned */
#define VECTOR JOIN(vector, ISA)
#define AT(p) (*(JOIN(in_memory, ISA) *)(p))
#define READ(p) ((VECTOR)(*(const JOIN(in_memory, ISA) *)(p)))

static inline __attribute__((always_inline)) TARGET void JOIN(row_body, ISA)(const int taps, const int vectors, row_of r,
                                                                           const float *grad, const float *x, float *sums) {
    VECTOR sum0[MAX_TAPS], sum1[MAX_TAPS];
#pragma GCC unroll 8
    for (int s = 0; s < taps; s++) {
        sum0[s] = READ(sums + s * vectors * WIDTH);
        if (vectors > 1) sum1[s] = READ(sums + s * vectors * WIDTH + WIDTH);
    }
    /* Columns whose window lies inside of the row need no test; the others test each element. */
    for (int64_t q = 0; q < r.columns; q++, grad += r.grad_column, x += r.x_column) {
        const VECTOR g0 = READ(grad), g1 = vectors > 1 ? READ(grad + WIDTH) : g0;
        const int64_t at = q * r.stride - r.padding;
        if (q >= r.inner && q < r.inner_end) {
#pragma GCC unroll 8
            for (int s = 0; s < taps; s++) {
                sum0[s] = FMA(g0, READ(x + s * r.tap), sum0[s]);
                if (vectors > 1) sum1[s] = FMA(g1, READ(x + s * r.tap + WIDTH), sum1[s]);
            }
        } else {
#pragma GCC unroll 8
            for (int s = 0; s < taps; s++)
                if ((uint64_t)(at + s * r.dilation) < (uint64_t)r.width) {
                    sum0[s] = FMA(g0, READ(x + s * r.tap), sum0[s]);
                    if (vectors > 1) sum1[s] = FMA(g1, READ(x + s * r.tap + WIDTH), sum1[s]);
                }
        }
    }
#pragma GCC unroll 8
    for (int s = 0; s < taps; s++) {
        AT(sums + s * vectors * WIDTH) = sum0[s];
        if (vectors > 1) AT(sums + s * vectors * WIDTH + WIDTH) = sum1[s];
    }
}

#define ROW(t, v)                                                                                                  \
    static TARGET void JOIN(JOIN(row_##t##_, v), ISA)(row_of r, const float *grad, const float *x, float *sums) {   \
        JOIN(row_body, ISA)(t, v, r, grad, x, sums);                                                               \
    }
#define BOTH(t) ROW(t, 1) ROW(t, 2)
BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6) BOTH(7)
#define ENTRY(t) {JOIN(row_##t##_1, ISA), JOIN(row_##t##_2, ISA)}
static const row_kernels JOIN(rows, ISA) = {
    WIDTH, {ENTRY(1), ENTRY(2), ENTRY(3), ENTRY(4), ENTRY(5), ENTRY(6), ENTRY(7)},
};
#undef VECTOR
#undef AT
#undef READ
#undef ROW
#undef BOTH
#undef ENTRY
#undef TARGET
#undef FMA
#undef WIDTH
#undef ISA
