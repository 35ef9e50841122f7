/* AVX2 tiles of 6 x 16. */
#if defined(__x86_64__)
#include "isa.h"
#define TARGET SMELT_AVX2
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define WIDTH 8
#define ISA _avx2
#include "gemm_tile.h"
#include "gemm_pack_x86.h"

BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6)

const smelt_isa smelt_isa_avx2 = {
    "avx2", 6, WIDTH, {ENTRY(1) ENTRY(2) ENTRY(3) ENTRY(4) ENTRY(5) ENTRY(6)}, pack,
};
#endif
