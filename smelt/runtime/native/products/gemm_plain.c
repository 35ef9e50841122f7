/* Portable tiles of 6 x 8 in the compiler's vector extension: NEON on 64-bit Arm, SSE2 on old x86, scalars elsewhere. */
#define TARGET
#define FMA(a, b, c) ((a) * (b) + (c))
#define WIDTH 4
#define ISA _plain
#include "gemm_tile.h"

BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6)

static void pack(float *to, int width, int count, int64_t k, const float *from, int64_t i_step, int64_t p_step) {
    for (int64_t p = 0; p < k; p++, to += width) {
        for (int i = 0; i < count; i++) to[i] = from[i * i_step + p * p_step];
        for (int i = count; i < width; i++) to[i] = 0;
    }
}

const smelt_isa smelt_isa_plain = {
    "plain", 6, WIDTH, {ENTRY(1) ENTRY(2) ENTRY(3) ENTRY(4) ENTRY(5) ENTRY(6)}, pack,
};
