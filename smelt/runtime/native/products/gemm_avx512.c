/* AVX-512 tiles of 14 x 32. */
#if defined(__x86_64__)
#include "isa.h"
#define TARGET SMELT_AVX512
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define WIDTH 16
#define ISA _avx512
#include "gemm_tile.h"
#include "gemm_pack_x86.h"

BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6) BOTH(7) BOTH(8) BOTH(9) BOTH(10) BOTH(11) BOTH(12) BOTH(13) BOTH(14)

const smelt_isa smelt_isa_avx512 = {
    "avx512", 14, WIDTH,
    {ENTRY(1) ENTRY(2) ENTRY(3) ENTRY(4) ENTRY(5) ENTRY(6) ENTRY(7) ENTRY(8) ENTRY(9) ENTRY(10) ENTRY(11) ENTRY(12)
         ENTRY(13) ENTRY(14)},
    pack,
};
#endif
