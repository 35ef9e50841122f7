/* Single-precision matrix products: C = A B (+ C) (+ bias), batched, with any strides. See gemm.c. */
#ifndef SMELT_GEMM_H
#define SMELT_GEMM_H
#include <stdint.h>

/* Sizes and strides, all counted in elements. A is [batch][m][k], B is [batch][k][n], C is [batch][m][n]. */
typedef struct {
    int64_t batch, m, n, k;
    int64_t a_batch, a_row, a_column;
    int64_t b_batch, b_row, b_column;
    int64_t c_batch, c_row, c_column;
    int64_t accumulate;  /* 0: C is written, 1: C is added to */
    int64_t bias_column; /* stride of bias over n: bias[j * bias_column] is added to column j when bias is given */
    int64_t bias_row;    /* stride of bias over m */
} smelt_gemm;

/* C = A B. `bias` may be NULL. C must not overlap A or B. Uses the threads that torch would use. */
void smelt_sgemm(const smelt_gemm *shape, const float *a, const float *b, float *c, const float *bias);

/* The name of the instruction set in use: "avx512", "avx2" or "plain". smelt_gemm_select selects one by name, for
 * tests, and returns 0 if it is not available. */
const char *smelt_gemm_kind(void);
int smelt_gemm_select(const char *name);

/* --- functions of an instruction set -------------------------------------------------------------------------- */

#define SMELT_MAX_ROWS 14
/* Computes one tile: rows x columns of C over k; the row count and vector count are fixed per function. Element (i, p)
 * of A is a[i * a_row + p * a_step], and A is read in place or packed. b is [k] rows of `columns` floats, b_step
 * apart; the rows of c are c_step apart. bias: `columns` floats or NULL. accumulate: whether to add to c. */
typedef void (*smelt_tile)(int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_step,
                           float *c, int64_t c_step, const float *bias, int accumulate);
typedef struct {
    const char *name;
    int rows;    /* maximum number of rows of a tile */
    int vector;  /* floats per vector; a tile is one or two vectors wide */
    smelt_tile tile[SMELT_MAX_ROWS][2]; /* [rows - 1][vectors - 1] */
    /* to[p * width + i] = from[i * i_step + p * p_step], i < count <= width, p < k; the rest of each row is zero. */
    void (*pack)(float *to, int width, int count, int64_t k, const float *from, int64_t i_step, int64_t p_step);
} smelt_isa;

extern const smelt_isa smelt_isa_plain;
#if defined(__x86_64__)
extern const smelt_isa smelt_isa_avx2, smelt_isa_avx512;
#endif
#endif
