/* Packing on x86: contiguous rows are copied, strided ones transposed in 8 x 8 blocks of registers. */
#include <string.h>

/* Unrolls completely, also at -O2: the arrays below are then registers. */
#define UNROLL _Pragma("GCC unroll 8")

INLINE void transpose8(__m256 r[8]) {
    __m256 a[8], b[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

static TARGET void pack_scalar(float *to, int width, int count, int64_t k, const float *from, int64_t i_step,
                               int64_t p_step) {
    for (int64_t p = 0; p < k; p++, to += width) {
        for (int i = 0; i < count; i++) to[i] = from[i * i_step + p * p_step];
        for (int i = count; i < width; i++) to[i] = 0;
    }
}

/* Packs a source in which the elements i of one p are adjacent: copies rows of `count`. */
static TARGET void pack_rows(float *to, int width, int count, int64_t k, const float *from, int64_t p_step) {
    if (count == 2 * WIDTH && width == count) {
        for (int64_t p = 0; p < k; p++, to += width, from += p_step) {
            const vector first = READ(from), second = READ(from + WIDTH);
            AT(to) = first;
            AT(to + WIDTH) = second;
        }
        return;
    }
    for (int64_t p = 0; p < k; p++, to += width, from += p_step) {
        for (int i = 0; i < count; i++) to[i] = from[i];
        for (int i = count; i < width; i++) to[i] = 0;
    }
}

/* Writes the rows p..p+7 of a packed panel from 8 elements of each of up to 8 sources. */
INLINE void pack_block(float *to, int width, int block, int count, int64_t p, int64_t k, const float *from,
                       int64_t i_step) {
    __m256 r[8];
    UNROLL for (int i = 0; i < 8; i++)
        r[i] = block + i < count ? _mm256_loadu_ps(from + (block + i) * i_step + p) : _mm256_setzero_ps();
    transpose8(r);
    UNROLL for (int q = 0; q < 7; q++) _mm256_storeu_ps(to + (p + q) * width + block, r[q]);
    float *end = to + (p + 7) * width + block;
    if (p + 8 == k && block + 8 > width) {
        float row[8];
        _mm256_storeu_ps(row, r[7]);
        memcpy(end, row, (size_t)(width - block) * sizeof(float));
    } else {
        _mm256_storeu_ps(end, r[7]);
    }
}

/* Packs a source in which the elements p of one i are adjacent: transposes them. Sources are often a multiple of 4 KB
 * apart and then compete for the same few lines of the first-level cache, so a whole line (16 elements) of 8 sources
 * is used at a time. A block stores 8 floats into each row. The floats that the last block writes after its row are
 * overwritten by the first block of the next row, so the blocks run backwards. Only after the very last row nothing
 * may be written, since another panel follows, which may be another thread's. */
static TARGET void pack_columns(float *to, int width, int count, int64_t k, const float *from, int64_t i_step) {
    const int last = (count - 1) / 8 * 8;
    int64_t p = 0;
    for (; p + 16 <= k; p += 16)
        for (int block = last; block >= 0; block -= 8) {
            for (int i = 0; i < 8 && block + i < count; i++)
                _mm_prefetch((const char *)(from + (block + i) * i_step + p + 32), _MM_HINT_T0);
            pack_block(to, width, block, count, p, k, from, i_step);
            pack_block(to, width, block, count, p + 8, k, from, i_step);
        }
    for (; p + 8 <= k; p += 8)
        for (int block = last; block >= 0; block -= 8) pack_block(to, width, block, count, p, k, from, i_step);
    pack_scalar(to + p * width, width, count, k - p, from + p, i_step, 1);
    for (int64_t q = 0; q < p; q++)
        for (int i = last + 8; i < width; i++) to[q * width + i] = 0;
}

static TARGET void pack(float *to, int width, int count, int64_t k, const float *from, int64_t i_step,
                        int64_t p_step) {
    if (i_step == 1)
        pack_rows(to, width, count, k, from, p_step);
    else if (p_step == 1)
        pack_columns(to, width, count, k, from, i_step);
    else
        pack_scalar(to, width, count, k, from, i_step, p_step);
}
