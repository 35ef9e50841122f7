/* The kernels of generated programs, in C99 without a library. All sizes are constants in the calls, so that a
 * compiler specializes each inlined kernel.
 *
 * Each float operation rounds separately: build with -ffp-contract=off and without -ffast-math. Sums of floats are
 * computed in the order of this code, which smelt/tiny/simulate.py and simulate_step.py follow. Sums of integers are
 * exact in any order.
 *
 * TINY_DUAL_MAC: compute two 16-bit products at a time, by the DSP instructions of Arm if available, else by the same
 * arithmetic in C. TINY_MAXMIN: the processor has instructions for the maximum and the minimum of two floats. */
#ifndef TINY_KERNELS_H
#define TINY_KERNELS_H

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define TINY_KERNEL static inline __attribute__((always_inline, unused))
#define TINY_FUNCTION static __attribute__((noinline))
#else
#define TINY_KERNEL static inline
#define TINY_FUNCTION static
#endif

#if !defined(TINY_DUAL_MAC) && defined(__ARM_FEATURE_DSP)
#define TINY_DUAL_MAC 1
#endif
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC && defined(__ARM_FEATURE_DSP)
#include <arm_acle.h>
#define TINY_SMLAD(x, w, sum) __smlad((int16x2_t)(x), (int16x2_t)(w), (sum))
#define TINY_SXTB16(v) ((uint32_t)__sxtb16((int8x4_t)(v)))
#define TINY_SXTAB16(a, v) ((uint32_t)__sxtab16((int16x2_t)(a), (int8x4_t)(v)))
#else
TINY_KERNEL int32_t TINY_SMLAD(uint32_t x, uint32_t w, int32_t sum) {
    return sum + (int16_t)x * (int16_t)w + (int16_t)(x >> 16) * (int16_t)(w >> 16);
}
TINY_KERNEL uint32_t TINY_SXTB16(uint32_t v) {
    return (uint16_t)(int8_t)v | (uint32_t)(uint16_t)(int8_t)(v >> 16) << 16;
}
TINY_KERNEL uint32_t TINY_SXTAB16(uint32_t a, uint32_t v) {
    uint32_t s = TINY_SXTB16(v);
    return (uint16_t)(a + s) | ((a >> 16) + (s >> 16)) << 16;
}
#endif

/* TINY_ODD: bytes 1 and 3 of a word, as two int16. TINY_ADD_ODD: their sums with the two int16 of another word. */
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
TINY_KERNEL uint32_t TINY_ODD(uint32_t v) {
    uint32_t odd; /* compilers do not use the rotation of the instruction */
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(v));
    return odd;
}
TINY_KERNEL uint32_t TINY_ADD_ODD(uint32_t a, uint32_t v) {
    uint32_t sum;
    __asm__("sxtab16 %0, %1, %2, ror #8" : "=r"(sum) : "r"(a), "r"(v));
    return sum;
}
#else
#define TINY_ODD(v) TINY_SXTB16((v) >> 8 | (v) << 24)
#define TINY_ADD_ODD(a, v) TINY_SXTAB16(a, (v) >> 8 | (v) << 24)
#endif

/* Unrolls loops whose counts are small constants in the call: a kernel then takes a third of the instructions. */
#if defined(__GNUC__) && !defined(__clang__)
#define TINY_UNROLL _Pragma("GCC unroll 16")
#else
#define TINY_UNROLL
#endif

/* -- numbers ------------------------------------------------------------------------------------------------------- */

/* Rounds a number between -2^22 and 2^22 to the nearest integer, ties to even. */
TINY_KERNEL float tiny_round(float v) {
    return (v + 12582912.0f) - 12582912.0f;
}

/* Rounds like tiny_round, with an integer as the result. */
TINY_KERNEL int32_t tiny_rounded(float v) {
    int32_t bits;
    v += 12582912.0f;
    memcpy(&bits, &v, 4);
    return bits - 0x4B400000;
}

TINY_KERNEL float tiny_bounded(float v, float low, float high) {
    return v > low ? (v < high ? v : high) : low; /* a NaN gives `low` */
}

/* e^x for x <= 0; an x below -87 counts as -87. */
TINY_KERNEL float tiny_exp(float x) {
    x = x > -87.0f ? x : -87.0f;
    float n = tiny_round(x * 1.44269504f);
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 0.00138888889f;
    p = p * r + 0.00833333333f;
    p = p * r + 0.0416666667f;
    p = p * r + 0.166666667f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

/* The quantization of a result. scales: factors of the accumulators, by channel; least and most: bounds before the
 * zero point is added; zero: the zero point; mask: one bit per element, set if it is within the bounds, or 0 if no
 * mask is needed. For a layer with an adapter of a rank above 0, also hidden: the result of the adapter's first
 * matrix; up: its second matrix (outputs, rank); step: the factor of its sum. first: the index, in the whole result, of
 * the first element that the kernel computes. */
typedef struct {
    const float *scales;
    float least, most;
    int zero;
    uint8_t *mask;
    const float *hidden, *up;
    int rank, outputs;
    float step;
    int first;
} tiny_result;

TINY_KERNEL int8_t tiny_store(float v, tiny_result r, int index) {
    if (r.mask) {
        index += r.first;
        uint8_t *byte = r.mask + (index >> 3), bit = (uint8_t)(1u << (index & 7));
        *byte = (uint8_t)((*byte & ~bit) | (v >= r.least && v <= r.most ? bit : 0));
    }
#if defined(TINY_MAXMIN) && TINY_MAXMIN
    v = __builtin_fminf(__builtin_fmaxf(v, r.least), r.most);
#else
    v = v < r.least ? r.least : v > r.most ? r.most : v;
#endif
    return (int8_t)(tiny_rounded(v) + r.zero);
}

TINY_KERNEL int8_t tiny_requantize(int32_t sum, int channel, tiny_result r, int index) {
    float v = (float)sum * r.scales[channel];
    if (r.rank) {
        const float *hidden = r.hidden + (r.first + index) / r.outputs * r.rank;
        float more = 0.0f;
        for (int k = 0; k < r.rank; k++) more += hidden[k] * r.up[channel * r.rank + k];
        v += more * r.step;
    }
    return tiny_store(v, r, index);
}

/* -- products ------------------------------------------------------------------------------------------------------ */

TINY_KERNEL uint32_t tiny_four(const int8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* sum of (x - zero) * w */
TINY_KERNEL int32_t tiny_dot(const int8_t *x, const int8_t *w, int n, int zero) {
    int32_t sum = 0;
    int i = 0;
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
    const uint32_t minus = (uint16_t)-zero | (uint32_t)(uint16_t)-zero << 16;
    for (; i + 4 <= n; i += 4) {
        uint32_t a = tiny_four(x + i), b = tiny_four(w + i);
        sum = TINY_SMLAD(TINY_SXTAB16(minus, a), TINY_SXTB16(b), sum);
        sum = TINY_SMLAD(TINY_ADD_ODD(minus, a), TINY_ODD(b), sum);
    }
#endif
    for (; i < n; i++) sum += (x[i] - zero) * w[i];
    return sum;
}

/* Products of two positions with two rows of weights: each word is unpacked once for two products. Adds to
 * sums[position][row]. */
TINY_KERNEL void tiny_dot_2x2(const int8_t *x0, const int8_t *x1, const int8_t *w0, const int8_t *w1, int n, int zero,
                              int32_t sums[4]) {
    int32_t s00 = sums[0], s01 = sums[1], s10 = sums[2], s11 = sums[3];
    int i = 0;
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
    const uint32_t minus = (uint16_t)-zero | (uint32_t)(uint16_t)-zero << 16;
    for (; i + 4 <= n; i += 4) {
        uint32_t a = tiny_four(x0 + i), b = tiny_four(x1 + i), c = tiny_four(w0 + i), d = tiny_four(w1 + i);
        uint32_t ae = TINY_SXTAB16(minus, a), ao = TINY_ADD_ODD(minus, a);
        uint32_t be = TINY_SXTAB16(minus, b), bo = TINY_ADD_ODD(minus, b);
        uint32_t ce = TINY_SXTB16(c), co = TINY_ODD(c);
        uint32_t de = TINY_SXTB16(d), dodd = TINY_ODD(d);
        s00 = TINY_SMLAD(ao, co, TINY_SMLAD(ae, ce, s00));
        s01 = TINY_SMLAD(ao, dodd, TINY_SMLAD(ae, de, s01));
        s10 = TINY_SMLAD(bo, co, TINY_SMLAD(be, ce, s10));
        s11 = TINY_SMLAD(bo, dodd, TINY_SMLAD(be, de, s11));
    }
#endif
    for (; i < n; i++) {
        int a = x0[i] - zero, b = x1[i] - zero;
        s00 += a * w0[i], s01 += a * w1[i], s10 += b * w0[i], s11 += b * w1[i];
    }
    sums[0] = s00, sums[1] = s01, sums[2] = s10, sums[3] = s11;
}

/* A pointwise convolution. All its weights are in flash (`fixed`), or the layer trains: then `trained` (outputs,
 * updated) has the weights of the inputs in `kept`, and `fixed` has zeros in their place; fixed is 0 if all weights
 * train. */
TINY_KERNEL void tiny_pointwise(const int8_t *x, int positions, int inputs, int zero, const int8_t *fixed,
                                const int8_t *kept, const int8_t *trained, int updated, const int32_t *bias, int outputs,
                                int8_t *y, tiny_result r) {
    for (int p = 0; p < positions; p += 2)
        for (int o = 0; o < outputs; o += 2) {
            int q = p + 1 < positions ? p + 1 : p, k = o + 1 < outputs ? o + 1 : o;
            int32_t sums[4] = {bias[o], bias[k], bias[o], bias[k]};
            if (fixed)
                tiny_dot_2x2(x + p * inputs, x + q * inputs, fixed + o * inputs, fixed + k * inputs, inputs, zero, sums);
            if (updated)
                tiny_dot_2x2(kept + p * updated, kept + q * updated, trained + o * updated, trained + k * updated, updated,
                             zero, sums);
            y[p * outputs + o] = tiny_requantize(sums[0], o, r, p * outputs + o);
            if (k > o) y[p * outputs + k] = tiny_requantize(sums[1], k, r, p * outputs + k);
            if (q > p) y[q * outputs + o] = tiny_requantize(sums[2], o, r, q * outputs + o);
            if (q > p && k > o) y[q * outputs + k] = tiny_requantize(sums[3], k, r, q * outputs + k);
        }
}

/* Where row `row` of an image begins of which `rows` rows are kept at a time, each in place of the one `rows` before. */
TINY_KERNEL int tiny_row(int row, int rows, int height, int elements) {
    return (rows < height ? (int)((unsigned)row % (unsigned)rows) : row) * elements;
}

/* The end of the rows that row `row` of a convolution reads. */
TINY_KERNEL int tiny_rows_end(int row, int stride, int kh, int pad_h, int height) {
    int end = row * stride - pad_h + kh;
    return end < height ? end : height;
}

TINY_KERNEL int32_t tiny_window(const int8_t *x, int rows, int height, int width, int inputs, int zero, const int8_t *w, int kh,
                                int kw, int top, int left) {
    int32_t sum = 0;
    int from = left < 0 ? -left : 0, to = left + kw > width ? width - left : kw;
    for (int u = 0; u < kh; u++)
        if (top + u >= 0 && top + u < height && from < to)
            sum += tiny_dot(x + tiny_row(top + u, rows, height, width * inputs) + (left + from) * inputs,
                            w + (u * kw + from) * inputs, (to - from) * inputs, zero);
    return sum;
}

/* Products of two neighbouring positions with two outputs, for windows that lie within the image. */
TINY_KERNEL void tiny_window_2x2(const int8_t *x, int rows, int height, int width, int inputs, int zero, const int8_t *w0,
                                 const int8_t *w1, int kh, int kw, int stride, int top, int left, int32_t sums[4]) {
    TINY_UNROLL for (int u = 0; u < kh; u++) {
        const int8_t *row = x + tiny_row(top + u, rows, height, width * inputs) + left * inputs;
        int at = u * kw * inputs;
        tiny_dot_2x2(row, row + stride * inputs, w0 + at, w1 + at, kw * inputs, zero, sums);
    }
}

/* Row i of a convolution, to y. `rows` rows of its input are kept at a time; all of them if weights train. */
TINY_KERNEL void tiny_conv_row(const int8_t *x, int rows, int height, int width, int inputs, int zero, const int8_t *fixed,
                               const int8_t *kept, const int8_t *trained, int updated, const int32_t *bias, int outputs, int kh,
                               int kw, int stride, int pad_h, int pad_w, int i, int8_t *y, int out_width, tiny_result r) {
    for (int j = 0; j < out_width; j++) {
        int top = i * stride - pad_h, left = j * stride - pad_w, at = j * outputs;
        if (top >= 0 && top + kh <= height && left >= 0 && left + stride + kw <= width && j + 1 < out_width) {
            for (int o = 0; o < outputs; o += 2) {
                int k = o + 1 < outputs ? o + 1 : o, taps = kh * kw;
                int32_t sums[4] = {bias[o], bias[k], bias[o], bias[k]};
                if (fixed)
                    tiny_window_2x2(x, rows, height, width, inputs, zero, fixed + o * taps * inputs, fixed + k * taps * inputs,
                                    kh, kw, stride, top, left, sums);
                if (updated)
                    tiny_window_2x2(kept, rows, height, width, updated, zero, trained + o * taps * updated,
                                    trained + k * taps * updated, kh, kw, stride, top, left, sums);
                y[at + o] = tiny_requantize(sums[0], o, r, at + o);
                if (k > o) y[at + k] = tiny_requantize(sums[1], k, r, at + k);
                y[at + outputs + o] = tiny_requantize(sums[2], o, r, at + outputs + o);
                if (k > o) y[at + outputs + k] = tiny_requantize(sums[3], k, r, at + outputs + k);
            }
            j++;
            continue;
        }
        for (int o = 0; o < outputs; o++) {
            int32_t sum = bias[o];
            if (fixed)
                sum += tiny_window(x, rows, height, width, inputs, zero, fixed + o * kh * kw * inputs, kh, kw, top, left);
            if (updated)
                sum += tiny_window(kept, rows, height, width, updated, zero, trained + o * kh * kw * updated, kh, kw, top, left);
            y[at + o] = tiny_requantize(sum, o, r, at + o);
        }
    }
}

TINY_KERNEL void tiny_conv(const int8_t *x, int height, int width, int inputs, int zero, const int8_t *fixed,
                           const int8_t *kept, const int8_t *trained, int updated, const int32_t *bias, int outputs, int kh,
                           int kw, int stride, int pad_h, int pad_w, int8_t *y, int out_height, int out_width, tiny_result r) {
    for (int i = 0; i < out_height; i++, r.first += out_width * outputs)
        tiny_conv_row(x, height, height, width, inputs, zero, fixed, kept, trained, updated, bias, outputs, kh, kw, stride, pad_h,
                      pad_w, i, y + i * out_width * outputs, out_width, r);
}

enum { TINY_MAX_TAPS = 11 }; /* maximum extent of a depthwise kernel, in each direction */

#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
/* Packs each four taps of a row in pairs: taps 0 and 2 to `even`, taps 1 and 3 to `odd`; taps after the row's end are
 * 0. */
TINY_KERNEL void tiny_pairs(const int8_t *own, int kh, int kw, int groups, uint32_t *even, uint32_t *odd) {
    for (int u = 0; u < kh; u++)
        TINY_UNROLL for (int g = 0; g < groups; g++) {
            const int8_t *w = own + u * kw + 4 * g;
            int left = kw - 4 * g;
            even[u * groups + g] = (uint16_t)w[0] | (left > 2 ? (uint32_t)(uint16_t)w[2] << 16 : 0);
            odd[u * groups + g] = (left > 1 ? (uint16_t)w[1] : 0u) | (left > 3 ? (uint32_t)(uint16_t)w[3] << 16 : 0);
        }
}

/* Adds the products of a window of a plane to `sums`. With `each` 2, also those of the window one to the right, which
 * shares the unpacked words: bytes 1 and 3 are odd for the first result and even for the second. Reads up to 8 bytes
 * after the plane, whose weights are 0. */
TINY_KERNEL void tiny_plane_sums(const int8_t *p, int width, const uint32_t *even, const uint32_t *odd, int kh, int kw, int each,
                                 int32_t sums[2]) {
    const int groups = (kw + 3) / 4;
    int32_t sum = sums[0], next = sums[1];
    TINY_UNROLL for (int u = 0; u < kh; u++)
        TINY_UNROLL for (int g = 0; g < groups; g++) {
            const int8_t *at = p + u * width + 4 * g;
            const uint32_t we = even[u * groups + g], wo = odd[u * groups + g], one = tiny_four(at);
            const uint32_t second = TINY_ODD(one);
            sum = TINY_SMLAD(TINY_SXTB16(one), we, sum);
            if (kw - 4 * g > 1) sum = TINY_SMLAD(second, wo, sum);
            if (each == 2) next = TINY_SMLAD(second, we, next);
            if (each == 2 && kw - 4 * g > 1) next = TINY_SMLAD(TINY_SXTB16(tiny_four(at + 2)), wo, next);
        }
    sums[0] = sum, sums[1] = next;
}

/* Computes a row of results, two at a time at stride 1. */
TINY_KERNEL void tiny_plane_row(const int8_t *p, int width, const uint32_t *even, const uint32_t *odd, int32_t bias, int channel,
                                int channels, int kh, int kw, int stride, int8_t *y, int index, int count, tiny_result r) {
    const int each = stride == 1 ? 2 : 1;
    for (int j = 0; j < count; j += each) {
        int32_t sums[2] = {bias, bias};
        tiny_plane_sums(p + j * stride, width, even, odd, kh, kw, each, sums);
        y[(index + j) * channels + channel] = tiny_requantize(sums[0], channel, r, (index + j) * channels + channel);
        if (each == 2 && j + 1 < count)
            y[(index + j + 1) * channels + channel] =
                tiny_requantize(sums[1], channel, r, (index + j + 1) * channels + channel);
    }
}
#endif

/* A depthwise convolution of one channel. `plane`: its input with a border of zero points. `w`: its first weight; its
 * weights are `apart` bytes apart. */
TINY_KERNEL void tiny_plane(const int8_t *plane, int width, int zero, const int8_t *w, int apart, int32_t bias, int channel,
                            int channels, int kh, int kw, int stride, int8_t *y, int out_height, int out_width, tiny_result r) {
    int8_t own[TINY_MAX_TAPS * TINY_MAX_TAPS];
    for (int t = 0; t < kh * kw; t++) {
        own[t] = w[t * apart];
        bias -= zero * own[t];
    }
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
    uint32_t even[TINY_MAX_TAPS * 3], odd[TINY_MAX_TAPS * 3];
    tiny_pairs(own, kh, kw, (kw + 3) / 4, even, odd);
    for (int i = 0; i < out_height; i++)
        tiny_plane_row(plane + i * stride * width, width, even, odd, bias, channel, channels, kh, kw, stride, y, i * out_width,
                       out_width, r);
#else
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++) {
            const int8_t *p = plane + i * stride * width + j * stride;
            int32_t sum = bias;
            for (int u = 0; u < kh; u++)
                TINY_UNROLL for (int v = 0; v < kw; v++) sum += p[u * width + v] * own[u * kw + v];
            int at = (i * out_width + j) * channels + channel;
            y[at] = tiny_requantize(sum, channel, r, at);
        }
#endif
}

/* A depthwise convolution. y may be x if their extents agree: a channel is read before it is written. The weights of
 * the channels in `chosen` (of all channels if it is 0) are in `trained`, (kh, kw, updated). `high` and `wide`: extents
 * of an input with its padding, of which pad_h rows lie above and pad_w columns on the left. */
TINY_KERNEL void tiny_depthwise(const int8_t *x, int height, int width, int channels, int zero, const int8_t *fixed,
                                const int8_t *trained, const uint16_t *chosen, int updated, const int32_t *bias, int kh, int kw,
                                int stride, int pad_h, int pad_w, int high, int wide, int8_t *y, int out_height, int out_width,
                                tiny_result r, int8_t *plane) {
    memset(plane, zero, (size_t)(high * wide));
    for (int c = 0, k = 0; c < channels; c++) {
        int trains = k < updated && (chosen ? chosen[k] : k) == c;
        const int8_t *w = trains ? trained + k++ : fixed + c;
        for (int i = 0; i < height; i++)
            for (int j = 0; j < width; j++) plane[(i + pad_h) * wide + j + pad_w] = x[(i * width + j) * channels + c];
        tiny_plane(plane, wide, zero, w, trains ? updated : channels, bias[c], c, channels, kh, kw, stride, y, out_height, out_width, r);
    }
}

/* Row i of a depthwise convolution, to y. `rows` rows of its input are kept at a time. plane: kh rows of one channel,
 * `wide` columns each with the padding. */
TINY_KERNEL void tiny_depthwise_row(const int8_t *x, int rows, int height, int width, int channels, int zero, const int8_t *w,
                                    const int32_t *bias, int kh, int kw, int stride, int pad_h, int pad_w, int wide, int i,
                                    int8_t *y, int out_width, tiny_result r, int8_t *plane) {
    memset(plane, zero, (size_t)(kh * wide));
    for (int c = 0; c < channels; c++) {
        for (int u = 0; u < kh; u++) {
            int top = i * stride - pad_h + u;
            if (top < 0 || top >= height) continue;
            const int8_t *row = x + tiny_row(top, rows, height, width * channels) + c;
            for (int j = 0; j < width; j++) plane[u * wide + pad_w + j] = row[j * channels];
        }
        tiny_plane(plane, wide, zero, w + c, channels, bias[c], c, channels, kh, kw, stride, y, 1, out_width, r);
    }
}

/* A pointwise convolution followed by a depthwise one, two channels at a time, so that the wide tensor between them is
 * never stored. */
TINY_KERNEL void tiny_expand_depthwise(const int8_t *x, int height, int width, int inputs, int zero, const int8_t *expand,
                                       const int32_t *expand_bias, tiny_result between, int channels, const int8_t *w,
                                       const int32_t *bias, int kh, int kw, int stride, int pad_h, int pad_w, int wide, int8_t *y,
                                       int out_height, int out_width, tiny_result r, int8_t *planes, int plane_bytes) {
    int8_t *first = planes, *second = planes + plane_bytes;
    memset(planes, between.zero, (size_t)(2 * plane_bytes));
    for (int c = 0; c < channels; c += 2) {
        int d = c + 1 < channels ? c + 1 : c;
        for (int p = 0; p < height * width; p += 2) {
            int q = p + 1 < height * width ? p + 1 : p;
            int32_t sums[4] = {expand_bias[c], expand_bias[d], expand_bias[c], expand_bias[d]};
            tiny_dot_2x2(x + p * inputs, x + q * inputs, expand + c * inputs, expand + d * inputs, inputs, zero, sums);
            int a = (p / width + pad_h) * wide + p % width + pad_w;
            int b = (q / width + pad_h) * wide + q % width + pad_w;
            first[a] = tiny_requantize(sums[0], c, between, 0);
            second[a] = tiny_requantize(sums[1], d, between, 0);
            first[b] = tiny_requantize(sums[2], c, between, 0);
            second[b] = tiny_requantize(sums[3], d, between, 0);
        }
        tiny_plane(first, wide, between.zero, w + c, channels, bias[c], c, channels, kh, kw, stride, y, out_height, out_width, r);
        if (d > c) tiny_plane(second, wide, between.zero, w + d, channels, bias[d], d, channels, kh, kw, stride, y, out_height, out_width, r);
    }
}

/* -- other kernels of the forward ---------------------------------------------------------------------------------- */

TINY_KERNEL void tiny_gather(const int8_t *x, int positions, int channels, const uint16_t *chosen, int count, int8_t *y) {
    for (int p = 0; p < positions; p++)
        for (int k = 0; k < count; k++) y[p * count + k] = x[p * channels + chosen[k]];
}

TINY_KERNEL void tiny_add(const int8_t *a, int a_zero, float a_scale, const int8_t *b, int b_zero, float b_scale, int n,
                          int8_t *y, tiny_result r) {
    for (int i = 0; i < n; i++) y[i] = tiny_store((float)(a[i] - a_zero) * a_scale + (float)(b[i] - b_zero) * b_scale, r, i);
}

TINY_KERNEL void tiny_pool(const int8_t *x, int width, int channels, int zero, float scale, int kh, int kw, int down, int right,
                           int8_t *y, int out_height, int out_width, tiny_result r) {
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int c = 0; c < channels; c++) {
                int32_t sum = 0;
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) sum += x[((i * down + u) * width + j * right + v) * channels + c] - zero;
                int at = (i * out_width + j) * channels + c;
                y[at] = tiny_store((float)sum * scale, r, at);
            }
}

/* The largest elements of windows; what a window has outside of the image does not count. */
TINY_KERNEL void tiny_max_pool(const int8_t *x, int height, int width, int channels, int kh, int kw, int down, int right,
                               int pad_h, int pad_w, int out_height, int out_width, int8_t *y) {
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int c = 0; c < channels; c++) {
                int best = -128;
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) {
                        int top = i * down - pad_h + u, left = j * right - pad_w + v;
                        if (top < 0 || top >= height || left < 0 || left >= width) continue;
                        int one = x[(top * width + left) * channels + c];
                        best = one > best ? one : best;
                    }
                y[(i * out_width + j) * channels + c] = (int8_t)best;
            }
}

/* Products; b goes on `step` elements with each position: all channels, or none if it has one number a channel. */
TINY_KERNEL void tiny_multiply(const int8_t *a, int a_zero, const int8_t *b, int b_zero, float scale, int positions,
                               int channels, int step, int8_t *y, tiny_result r) {
    for (int p = 0; p < positions; p++)
        for (int c = 0; c < channels; c++) {
            int at = p * channels + c, product = (a[at] - a_zero) * (b[p * step + c] - b_zero);
            y[at] = tiny_store((float)product * scale, r, at);
        }
}

/* Channels from `first` on, of `outputs`, in another scale. */
TINY_KERNEL void tiny_concat(const int8_t *x, int zero, float scale, int positions, int channels, int first, int outputs,
                             int8_t *y, tiny_result r) {
    for (int p = 0; p < positions; p++)
        for (int c = 0; c < channels; c++) {
            int at = p * outputs + first + c;
            y[at] = tiny_store((float)(x[p * channels + c] - zero) * scale, r, at);
        }
}

TINY_KERNEL void tiny_clamp(const int8_t *x, int zero, int n, int8_t *y, tiny_result r) {
    for (int i = 0; i < n; i++) y[i] = tiny_store((float)(x[i] - zero), r, i);
}

TINY_KERNEL void tiny_dequantize(const int8_t *x, int zero, float scale, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = (float)(x[i] - zero) * scale;
}

TINY_KERNEL void tiny_head(const int8_t *x, int zero, float scale, int n, const float *w, const float *bias, int classes,
                           float *y) {
    for (int k = 0; k < classes; k++) {
        float sum = bias[k];
        for (int i = 0; i < n; i++) sum += (float)(x[i] - zero) * scale * w[k * n + i];
        y[k] = sum;
    }
}

TINY_KERNEL int tiny_largest(const float *x, int n) {
    int best = 0;
    for (int k = 1; k < n; k++)
        if (x[k] > x[best]) best = k;
    return best;
}

#endif
