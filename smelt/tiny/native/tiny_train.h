/* The kernels of a training step. Gradients are float32, with respect to the int8 values and the int32 accumulators.
 * Parameters are updated in place as soon as their gradient is known. For compiler flags, see tiny_kernels.h. */
#ifndef TINY_TRAIN_H
#define TINY_TRAIN_H

#include "tiny_attention.h"

/* -- functions ----------------------------------------------------------------------------------------------------- */

/* The natural logarithm for x >= 1. */
TINY_KERNEL float tiny_log(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    float exponent = (float)((int32_t)(bits >> 23) - 127), m;
    bits = (bits & 0x7fffffu) | 0x3f800000u;
    memcpy(&m, &bits, 4);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.0909090909f;
    p = p * z + 0.111111111f;
    p = p * z + 0.142857143f;
    p = p * z + 0.2f;
    p = p * z + 0.333333333f;
    p = p * z + 1.0f;
    return exponent * 0.693147181f + 2.0f * s * p;
}

/* A random fraction below 1 with 24 bits: a hash of its arguments, so that random numbers need no state but the number
 * of steps. */
TINY_KERNEL float tiny_fraction(uint32_t steps, uint32_t salt, uint32_t index) {
    uint32_t h = (index * 0x9E3779B1u) ^ (steps * 0x85EBCA6Bu + salt);
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    return (float)(h >> 8) * (1.0f / 16777216.0f);
}

/* -- updates ------------------------------------------------------------------------------------------------------- */

enum { TINY_NEAREST, TINY_STOCHASTIC, TINY_LATENT };

/* The update of parameters. velocity: the momentum's state, or 0; latent: float copies of int8 weights, or 0;
 * gradient: where gradients are stored for a later update, or 0. */
typedef struct {
    float rate, momentum;
    int rounding;
    uint32_t steps, salt;
    float *velocity, *latent, *gradient;
} tiny_sgd;

TINY_KERNEL float tiny_change(float gradient, tiny_sgd s, int index) {
    if (s.velocity) {
        gradient = s.velocity[index] * s.momentum + gradient;
        s.velocity[index] = gradient;
    }
    return s.rate * gradient;
}

TINY_KERNEL float tiny_floor(float v) {
    float r = tiny_round(v);
    return r > v ? r - 1.0f : r;
}

TINY_KERNEL float tiny_whole(float v, tiny_sgd s, int index) {
    if (s.rounding != TINY_STOCHASTIC) return tiny_round(v);
    float below = tiny_floor(v);
    return tiny_fraction(s.steps, s.salt, (uint32_t)index) < v - below ? below + 1.0f : below;
}

TINY_KERNEL void tiny_update_int8(int8_t *w, float gradient, tiny_sgd s, int index) {
    if (s.gradient) {
        s.gradient[index] = gradient;
        return;
    }
    float old = s.latent ? s.latent[index] : (float)w[index];
    float v = tiny_bounded(old - tiny_change(gradient, s, index), -127.0f, 127.0f);
    if (s.latent) s.latent[index] = v;
    w[index] = (int8_t)tiny_whole(v, s, index);
}

/* Updates an int32 parameter. A change of 2^22 or more is truncated, since its fraction does not matter. */
TINY_KERNEL void tiny_update_int32(int32_t *b, float gradient, tiny_sgd s, int index) {
    if (s.gradient) {
        s.gradient[index] = gradient;
        return;
    }
    float change = tiny_bounded(tiny_change(gradient, s, index), -536870912.0f, 536870912.0f);
    int32_t whole = change > -4194304.0f && change < 4194304.0f ? (int32_t)tiny_whole(change, s, index) : (int32_t)change;
    int32_t v = b[index] - whole;
    b[index] = v > 1073741824 ? 1073741824 : v < -1073741824 ? -1073741824 : v;
}

TINY_KERNEL void tiny_update_float(float *w, float gradient, tiny_sgd s, int index) {
    if (s.gradient) {
        s.gradient[index] = gradient;
        return;
    }
    w[index] = w[index] - tiny_change(gradient, s, index);
}

/* Updates n parameters by stored gradients. */
TINY_KERNEL void tiny_apply_int8(const float *gradient, int n, int8_t *w, tiny_sgd s) {
    for (int i = 0; i < n; i++) tiny_update_int8(w, gradient[i], s, i);
}

TINY_KERNEL void tiny_apply_int32(const float *gradient, int n, int32_t *b, tiny_sgd s) {
    for (int i = 0; i < n; i++) tiny_update_int32(b, gradient[i], s, i);
}

TINY_KERNEL void tiny_apply_float32(const float *gradient, int n, float *w, tiny_sgd s) {
    for (int i = 0; i < n; i++) tiny_update_float(w, gradient[i], s, i);
}

/* -- loss and classifier ------------------------------------------------------------------------------------------- */

TINY_KERNEL float tiny_loss(const float *logits, int classes, int label, float *gradient) {
    float most = logits[0], sum = 0.0f;
    for (int k = 1; k < classes; k++) most = logits[k] > most ? logits[k] : most;
    for (int k = 0; k < classes; k++) sum += gradient[k] = tiny_exp(logits[k] - most);
    float loss = tiny_log(sum) - (logits[label] - most);
    for (int k = 0; k < classes; k++) gradient[k] = gradient[k] / sum - (k == label ? 1.0f : 0.0f);
    return loss;
}

TINY_KERNEL void tiny_head_backward(const float *gradient, int classes, const float *w, int n, float scale, float *gx) {
    for (int i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int k = 0; k < classes; k++) sum += gradient[k] * w[k * n + i];
        gx[i] = sum * scale;
    }
}

TINY_KERNEL void tiny_head_update(const float *gradient, int classes, const int8_t *x, int zero, float scale, int n, float *w,
                                  tiny_sgd of_weight, float *bias, tiny_sgd of_bias) {
    for (int k = 0; k < classes; k++) {
        for (int i = 0; i < n; i++)
            tiny_update_float(w, gradient[k] * ((float)(x[i] - zero) * scale), of_weight, k * n + i);
        tiny_update_float(bias, gradient[k], of_bias, k);
    }
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

/* Converts gradients of results to gradients of accumulators, which are 0 where the result was clamped. If scales is
 * 0, the factors are 1. */
TINY_KERNEL void tiny_unclamp(const float *g, const uint8_t *mask, const float *scales, int channels, int n, float *out) {
    for (int i = 0, c = 0; i < n; i++, c = c + 1 == channels ? 0 : c + 1)
        out[i] = !(mask[i >> 3] >> (i & 7) & 1) ? 0.0f : scales ? g[i] * scales[c] : g[i];
}

TINY_KERNEL void tiny_scale(const float *g, float scale, int n, float *out) {
    for (int i = 0; i < n; i++) out[i] = g[i] * scale;
}

TINY_KERNEL void tiny_accumulate(const float *a, const float *b, int n, float *out) {
    for (int i = 0; i < n; i++) out[i] = a[i] + b[i];
}

TINY_KERNEL void tiny_pool_backward(const float *g, int out_height, int out_width, int channels, float scale, int kh, int kw,
                                    int down, int right, float *gx, int height, int width) {
    for (int i = 0; i < height * width * channels; i++) gx[i] = 0.0f;
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int u = 0; u < kh; u++)
                for (int v = 0; v < kw; v++)
                    for (int c = 0; c < channels; c++)
                        gx[((i * down + u) * width + j * right + v) * channels + c] +=
                            g[(i * out_width + j) * channels + c] * scale;
}

/* The gradient of a window goes to its largest element, of several equal ones to the first. */
TINY_KERNEL void tiny_max_pool_backward(const int8_t *x, int height, int width, int channels, int kh, int kw, int down, int right,
                                        int pad_h, int pad_w, int out_height, int out_width, const float *g, float *gx) {
    for (int i = 0; i < height * width * channels; i++) gx[i] = 0.0f;
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int c = 0; c < channels; c++) {
                int best = -129, at = 0;
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) {
                        int top = i * down - pad_h + u, left = j * right - pad_w + v;
                        if (top < 0 || top >= height || left < 0 || left >= width) continue;
                        int here = (top * width + left) * channels + c;
                        if (x[here] > best) best = x[here], at = here;
                    }
                gx[at] += g[(i * out_width + j) * channels + c];
            }
}

/* The gradient of one operand of a product, given the other one; see tiny_multiply. */
TINY_KERNEL void tiny_multiply_backward(const float *g, const int8_t *other, int zero, float scale, int positions, int channels,
                                        int step, float *out) {
    for (int p = 0; p < positions; p++)
        for (int c = 0; c < channels; c++)
            out[p * channels + c] = g[p * channels + c] * (float)(other[p * step + c] - zero) * scale;
}

/* The gradient of an operand that has one number a channel. */
TINY_KERNEL void tiny_gate_backward(const float *g, const int8_t *other, int zero, float scale, int positions, int channels,
                                    float *out) {
    for (int c = 0; c < channels; c++) {
        float sum = 0.0f;
        for (int p = 0; p < positions; p++) sum += g[p * channels + c] * (float)(other[p * channels + c] - zero);
        out[c] = sum * scale;
    }
}

TINY_KERNEL void tiny_concat_backward(const float *g, float scale, int positions, int channels, int first, int outputs,
                                      float *out) {
    for (int p = 0; p < positions; p++)
        for (int c = 0; c < channels; c++) out[p * channels + c] = g[p * outputs + first + c] * scale;
}

/* Adds the contribution of one output position to the gradient of one input position. */
TINY_KERNEL void tiny_spread(const float *g, int outputs, const int8_t *fixed, const int8_t *trained, const uint16_t *chosen,
                             int updated, int inputs, int taps, int tap, float *gx) {
    for (int o = 0; o < outputs; o++) {
        float each = g[o];
        if (each == 0.0f) continue; /* adds nothing */
        if (fixed)
            for (int i = 0; i < inputs; i++) gx[i] += each * (float)fixed[(o * taps + tap) * inputs + i];
        for (int k = 0; k < updated; k++)
            gx[chosen ? chosen[k] : k] += each * (float)trained[(o * taps + tap) * updated + k];
    }
}

/* For blocks of four by four: the sums s0 to s3 of the products of one number with w0 to w3. */
#define TINY_SUMS(s) float s##0 = 0.0f, s##1 = 0.0f, s##2 = 0.0f, s##3 = 0.0f
#define TINY_ADD_PRODUCTS(s, g) s##0 += (g) * w0, s##1 += (g) * w1, s##2 += (g) * w2, s##3 += (g) * w3
#define TINY_STORE_SUMS(s, p, first) p[first(0)] = s##0, p[first(1)] = s##1, p[first(2)] = s##2, p[first(3)] = s##3

/* Computes four positions by four inputs, from input `c` on, of the gradient of a pointwise convolution's input. */
TINY_KERNEL void tiny_pointwise_block(const float *g, int outputs, const int8_t *w, int inputs, const uint16_t *chosen, int c,
                                      float *gx, int apart) {
    const float *ga = g, *gb = ga + outputs, *gc = gb + outputs, *gd = gc + outputs;
    TINY_SUMS(a);
    TINY_SUMS(b);
    TINY_SUMS(c);
    TINY_SUMS(d);
    for (int o = 0; o < outputs; o++) {
        const int8_t *row = w + o * inputs + c;
        const float w0 = row[0], w1 = row[1], w2 = row[2], w3 = row[3];
        TINY_ADD_PRODUCTS(a, ga[o]);
        TINY_ADD_PRODUCTS(b, gb[o]);
        TINY_ADD_PRODUCTS(c, gc[o]);
        TINY_ADD_PRODUCTS(d, gd[o]);
    }
#define TINY_INPUT(k) (chosen ? chosen[c + k] : c + k)
    float *xa = gx, *xb = xa + apart, *xc = xb + apart, *xd = xc + apart;
    TINY_STORE_SUMS(a, xa, TINY_INPUT);
    TINY_STORE_SUMS(b, xb, TINY_INPUT);
    TINY_STORE_SUMS(c, xc, TINY_INPUT);
    TINY_STORE_SUMS(d, xd, TINY_INPUT);
#undef TINY_INPUT
}

/* Computes the gradient of the inputs of a pointwise convolution that its weights `w` (outputs, inputs) read: those in
 * `chosen`, or all if it is 0. Each sum is over the outputs in order; blocks at the ends overlap the blocks before
 * them. */
TINY_KERNEL void tiny_pointwise_backward(const float *g, int positions, int outputs, const int8_t *w, int inputs,
                                         const uint16_t *chosen, float *gx, int apart) {
    if (positions < 4 || inputs < 4) {
        for (int p = 0; p < positions; p++)
            for (int i = 0; i < inputs; i++) {
                float sum = 0.0f;
                for (int o = 0; o < outputs; o++) sum += g[p * outputs + o] * (float)w[o * inputs + i];
                gx[p * apart + (chosen ? chosen[i] : i)] = sum;
            }
        return;
    }
    for (int p = 0; p < positions; p += 4) {
        int first = p + 4 > positions ? positions - 4 : p;
        for (int i = 0; i < inputs; i += 4)
            tiny_pointwise_block(g + first * outputs, outputs, w, inputs, chosen, i + 4 > inputs ? inputs - 4 : i,
                                 gx + first * apart, apart);
    }
}

TINY_KERNEL void tiny_conv_backward(const float *g, int out_height, int out_width, int outputs, const int8_t *fixed,
                                    const int8_t *trained, const uint16_t *chosen, int updated, int kh, int kw, int stride,
                                    int pad_h, int pad_w, float *gx, int height, int width, int inputs) {
    if (kh == 1 && kw == 1 && stride == 1 && pad_h == 0 && pad_w == 0) {
        /* fixed weights are 0 where weights train, and the gradients by trained weights overwrite theirs */
        if (fixed) tiny_pointwise_backward(g, height * width, outputs, fixed, inputs, 0, gx, inputs);
        if (updated) tiny_pointwise_backward(g, height * width, outputs, trained, updated, chosen, gx, inputs);
        return;
    }
    for (int r = 0; r < height; r++)
        for (int q = 0; q < width; q++) {
            float *at = gx + (r * width + q) * inputs;
            for (int i = 0; i < inputs; i++) at[i] = 0.0f;
            for (int u = 0; u < kh; u++)
                for (int v = 0; v < kw; v++) {
                    int i = r + pad_h - u, j = q + pad_w - v;
                    if (i < 0 || j < 0 || i % stride || j % stride || i / stride >= out_height || j / stride >= out_width)
                        continue;
                    tiny_spread(g + (i / stride * out_width + j / stride) * outputs, outputs, fixed, trained, chosen, updated,
                                inputs, kh * kw, u * kw + v, at);
                }
        }
}

/* Copies the weights of one channel from the depthwise weights `fixed` (kh, kw, channels), or, if k >= 0, those of the
 * k-th trained channel from `trained` (kh, kw, updated). */
TINY_KERNEL void tiny_taps(const int8_t *fixed, const int8_t *trained, int updated, int k, int taps, int channel, int channels,
                           float *own) {
    for (int t = 0; t < taps; t++) own[t] = (float)(k >= 0 ? trained[t * updated + k] : fixed[t * channels + channel]);
}

/* The gradient of one channel's input at stride 1. The gradient in `plane` has a border of kernel - 1 - padding zeros,
 * so that no tap needs a test. Four neighbours are computed at a time; those at the end of a row overlap the ones
 * before them. */
TINY_KERNEL void tiny_plane_backward(const float *plane, int wide, const float *own, int kh, int kw, float *gx, int height,
                                     int width, int channels) {
    for (int r = 0; r < height; r++)
        for (int q = 0; q < width; q += 4) {
            const int at = q + 4 > width && width >= 4 ? width - 4 : q, count = width < 4 ? width : 4;
            float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
            for (int u = 0; u < kh; u++)
                TINY_UNROLL for (int v = 0; v < kw; v++) {
                    const float *p = plane + (r + kh - 1 - u) * wide + at + kw - 1 - v;
                    const float w = own[u * kw + v];
                    a += p[0] * w;
                    if (count > 1) b += p[1] * w;
                    if (count > 2) c += p[2] * w;
                    if (count > 3) d += p[3] * w;
                }
            float *x = gx + (r * width + at) * channels;
            x[0] = a;
            if (count > 1) x[channels] = b;
            if (count > 2) x[2 * channels] = c;
            if (count > 3) x[3 * channels] = d;
        }
}

TINY_KERNEL void tiny_strided_backward(const float *plane, int out_height, int out_width, const float *own, int kh, int kw,
                                       int stride, int pad_h, int pad_w, float *gx, int height, int width, int channels) {
    for (int r = 0; r < height; r++)
        for (int q = 0; q < width; q++) {
            float sum = 0.0f;
            for (int u = 0; u < kh; u++) {
                int i = r + pad_h - u;
                if (i < 0 || i % stride || i / stride >= out_height) continue;
                for (int v = 0; v < kw; v++) {
                    int j = q + pad_w - v;
                    if (j < 0 || j % stride || j / stride >= out_width) continue;
                    sum += plane[i / stride * out_width + j / stride] * own[u * kw + v];
                }
            }
            gx[(r * width + q) * channels] = sum;
        }
}

/* The gradient of a depthwise convolution's input. gx may be g if their extents agree: a channel of g is read before
 * it is written. `bordered`: whether the plane has room for a border (the kernel has stride 1 and its padding is
 * smaller than its extent). */
TINY_KERNEL void tiny_depthwise_backward(const float *g, int out_height, int out_width, int channels, const int8_t *fixed,
                                         const int8_t *trained, const uint16_t *chosen, int updated, int kh, int kw, int stride,
                                         int pad_h, int pad_w, float *gx, int height, int width, float *plane, int bordered) {
    float own[TINY_MAX_TAPS * TINY_MAX_TAPS];
    const int top = bordered ? kh - 1 - pad_h : 0, left = bordered ? kw - 1 - pad_w : 0;
    const int wide = bordered ? width + kw - 1 : out_width;
    if (bordered) memset(plane, 0, sizeof(float) * (size_t)((height + kh - 1) * wide));
    for (int c = 0, next = 0; c < channels; c++) {
        int k = next < updated && (chosen ? chosen[next] : next) == c ? next++ : -1;
        tiny_taps(fixed, trained, updated, k, kh * kw, c, channels, own);
        for (int i = 0; i < out_height; i++)
            for (int j = 0; j < out_width; j++) plane[(i + top) * wide + j + left] = g[(i * out_width + j) * channels + c];
        if (bordered)
            tiny_plane_backward(plane, wide, own, kh, kw, gx + c, height, width, channels);
        else
            tiny_strided_backward(plane, out_height, out_width, own, kh, kw, stride, pad_h, pad_w, gx + c, height, width,
                                  channels);
    }
}

/* -- backward in int8 ---------------------------------------------------------------------------------------------- */

/* Quantizes a gradient in steps of a 127th of its largest absolute value, with stochastic rounding, which is
 * unbiased. */
TINY_KERNEL void tiny_quantize_gradient(const float *g, int n, uint32_t steps, uint32_t salt, int8_t *q, float *scale) {
    float most = 0.0f;
    for (int i = 0; i < n; i++) {
        float v = g[i] < 0.0f ? -g[i] : g[i];
        most = v > most ? v : most;
    }
    int some = most > 1e-30f;
    float each = some ? 127.0f / most : 0.0f;
    *scale = some ? most / 127.0f : 0.0f;
    for (int i = 0; i < n; i++) {
        q[i] = 0;
        if (g[i] == 0.0f) continue; /* a clamped result's: no draw is needed */
        float v = tiny_bounded(g[i] * each, -127.0f, 127.0f), below = tiny_floor(v);
        q[i] = (int8_t)(tiny_fraction(steps, salt, (uint32_t)i) < v - below ? below + 1.0f : below);
    }
}

/* Adds the products of a row of outputs with `count` columns of weights, at most 4. The rows of the weights are
 * `apart` bytes apart. */
TINY_KERNEL void tiny_columns(const int8_t *q, int outputs, const int8_t *w, int apart, int count, int32_t sums[4]) {
    int32_t s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];
    if (count == 4)
        for (int o = 0; o < outputs; o++) {
            int each = q[o];
            if (each == 0) continue;
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
            uint32_t four = tiny_four(w + o * apart), even = TINY_SXTB16(four), odd = TINY_SXTB16(four >> 8 | four << 24);
            s0 += each * (int16_t)even, s1 += each * (int16_t)odd;
            s2 += each * (int16_t)(even >> 16), s3 += each * (int16_t)(odd >> 16);
#else
            const int8_t *p = w + o * apart;
            s0 += each * p[0], s1 += each * p[1], s2 += each * p[2], s3 += each * p[3];
#endif
        }
    else
        for (int o = 0; o < outputs; o++) {
            const int8_t *p = w + o * apart;
            s0 += q[o] * p[0];
            if (count > 1) s1 += q[o] * p[1];
            if (count > 2) s2 += q[o] * p[2];
        }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
}

/* Computes the gradient of one input position by int8 weights `w` (outputs, kh, kw, inputs), for the channels in
 * `chosen`, or for all if it is 0. */
TINY_KERNEL void tiny_conv_columns(const int8_t *q, int out_height, int out_width, int outputs, const int8_t *w,
                                   const uint16_t *chosen, int inputs, int kh, int kw, int stride, int down, int right,
                                   float scale, float *gx) {
    for (int c = 0; c < inputs; c += 4) {
        int count = inputs - c < 4 ? inputs - c : 4;
        int32_t sums[4] = {0, 0, 0, 0};
        for (int u = 0; u < kh; u++)
            for (int v = 0; v < kw; v++) {
                int i = down - u, j = right - v;
                if (i < 0 || j < 0 || i % stride || j % stride || i / stride >= out_height || j / stride >= out_width) continue;
                tiny_columns(q + (i / stride * out_width + j / stride) * outputs, outputs, w + (u * kw + v) * inputs + c,
                             kh * kw * inputs, count, sums);
            }
        for (int k = 0; k < count; k++) gx[chosen ? chosen[c + k] : c + k] = (float)sums[k] * scale;
    }
}

/* As tiny_pointwise_backward, of an int8 gradient: exact sums, two inputs at a time, whose weights are first copied to
 * `columns`, 2 * outputs bytes, so that products of neighbouring outputs are next to each other. */
TINY_KERNEL void tiny_pointwise_backward_int8(const int8_t *q, float scale, int positions, int outputs, const int8_t *w, int inputs,
                                              const uint16_t *chosen, float *gx, int apart, int8_t *columns) {
    for (int c = 0; c < inputs; c += 2) {
        const int d = c + 1 < inputs ? c + 1 : c, to = chosen ? chosen[c] : c, next = chosen ? chosen[d] : d;
        for (int o = 0; o < outputs; o++) {
            columns[o] = w[o * inputs + c];
            columns[outputs + o] = w[o * inputs + d];
        }
        for (int p = 0; p < positions; p += 2) {
            const int r = p + 1 < positions ? p + 1 : p;
            int32_t sums[4] = {0, 0, 0, 0};
            tiny_dot_2x2(q + p * outputs, q + r * outputs, columns, columns + outputs, outputs, 0, sums);
            gx[p * apart + to] = (float)sums[0] * scale;
            gx[p * apart + next] = (float)sums[1] * scale;
            gx[r * apart + to] = (float)sums[2] * scale;
            gx[r * apart + next] = (float)sums[3] * scale;
        }
    }
}

/* Computes the gradient of a convolution's input. Fixed weights are 0 where weights train, and the gradients by
 * trained weights overwrite theirs. `columns`: of
 * tiny_pointwise_backward_int8. */
TINY_KERNEL void tiny_conv_backward_int8(const int8_t *q, const float *scale, int out_height, int out_width, int outputs,
                                         const int8_t *fixed, const int8_t *trained, const uint16_t *chosen, int updated, int kh,
                                         int kw, int stride, int pad_h, int pad_w, float *gx, int height, int width, int inputs,
                                         int8_t *columns) {
    if (kh == 1 && kw == 1 && stride == 1 && pad_h == 0 && pad_w == 0) {
        const int positions = height * width;
        if (fixed) tiny_pointwise_backward_int8(q, *scale, positions, outputs, fixed, inputs, 0, gx, inputs, columns);
        if (updated) tiny_pointwise_backward_int8(q, *scale, positions, outputs, trained, updated, chosen, gx, inputs, columns);
        return;
    }
    for (int r = 0; r < height; r++)
        for (int s = 0; s < width; s++) {
            float *at = gx + (r * width + s) * inputs;
            if (fixed)
                tiny_conv_columns(q, out_height, out_width, outputs, fixed, 0, inputs, kh, kw, stride, r + pad_h, s + pad_w,
                                  *scale, at);
            if (updated)
                tiny_conv_columns(q, out_height, out_width, outputs, trained, chosen, updated, kh, kw, stride, r + pad_h,
                                  s + pad_w, *scale, at);
        }
}

/* As tiny_plane_backward: `own` is turned by half a turn, and the plane has 8 bytes after its end. */
TINY_KERNEL void tiny_plane_backward_int8(const int8_t *plane, int wide, const int8_t *own, float scale, int kh, int kw, float *gx,
                                          int height, int width, int channels) {
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
    uint32_t even[TINY_MAX_TAPS * 3], odd[TINY_MAX_TAPS * 3];
    tiny_pairs(own, kh, kw, (kw + 3) / 4, even, odd);
    for (int r = 0; r < height; r++)
        for (int s = 0; s < width; s += 2) {
            int32_t sums[2] = {0, 0};
            tiny_plane_sums(plane + r * wide + s, wide, even, odd, kh, kw, 2, sums);
            gx[(r * width + s) * channels] = (float)sums[0] * scale;
            if (s + 1 < width) gx[(r * width + s + 1) * channels] = (float)sums[1] * scale;
        }
#else
    for (int r = 0; r < height; r++)
        for (int s = 0; s < width; s++) {
            const int8_t *p = plane + r * wide + s;
            int32_t sum = 0;
            for (int u = 0; u < kh; u++)
                TINY_UNROLL for (int v = 0; v < kw; v++) sum += p[u * wide + v] * own[u * kw + v];
            gx[(r * width + s) * channels] = (float)sum * scale;
        }
#endif
}

TINY_KERNEL void tiny_strided_backward_int8(const int8_t *plane, int out_height, int out_width, const int8_t *own, float scale,
                                            int kh, int kw, int stride, int pad_h, int pad_w, float *gx, int height, int width,
                                            int channels) {
    for (int r = 0; r < height; r++)
        for (int s = 0; s < width; s++) {
            int32_t sum = 0;
            for (int u = 0; u < kh; u++) {
                int i = r + pad_h - u;
                if (i < 0 || i % stride || i / stride >= out_height) continue;
                for (int v = 0; v < kw; v++) {
                    int j = s + pad_w - v;
                    if (j < 0 || j % stride || j / stride >= out_width) continue;
                    sum += plane[i / stride * out_width + j / stride] * own[(kh - 1 - u) * kw + kw - 1 - v];
                }
            }
            gx[(r * width + s) * channels] = (float)sum * scale;
        }
}

/* `bordered`: as of tiny_depthwise_backward. */
TINY_KERNEL void tiny_depthwise_backward_int8(const int8_t *q, const float *scale, int out_height, int out_width, int channels,
                                              const int8_t *fixed, const int8_t *trained, const uint16_t *chosen, int updated,
                                              int kh, int kw, int stride, int pad_h, int pad_w, float *gx, int height, int width,
                                              int8_t *plane, int bordered) {
    int8_t own[TINY_MAX_TAPS * TINY_MAX_TAPS]; /* turned by half a turn */
    const int top = bordered ? kh - 1 - pad_h : 0, left = bordered ? kw - 1 - pad_w : 0, taps = kh * kw;
    const int wide = bordered ? width + kw - 1 : out_width;
    if (bordered) memset(plane, 0, (size_t)((height + kh - 1) * wide));
    for (int c = 0, next = 0; c < channels; c++) {
        int k = next < updated && (chosen ? chosen[next] : next) == c ? next++ : -1;
        for (int t = 0; t < taps; t++) own[taps - 1 - t] = k >= 0 ? trained[t * updated + k] : fixed[t * channels + c];
        for (int i = 0; i < out_height; i++)
            for (int j = 0; j < out_width; j++) plane[(i + top) * wide + j + left] = q[(i * out_width + j) * channels + c];
        if (bordered)
            tiny_plane_backward_int8(plane, wide, own, *scale, kh, kw, gx + c, height, width, channels);
        else
            tiny_strided_backward_int8(plane, out_height, out_width, own, *scale, kh, kw, stride, pad_h, pad_w, gx + c, height,
                                       width, channels);
    }
}

/* The sum of tiny_correlation for an int8 gradient, which is exact. */
TINY_KERNEL int32_t tiny_correlation_int8(const int8_t *q, int out_height, int out_width, int outputs, int o, const int8_t *x,
                                          int height, int width, int inputs, int k, int zero, int down, int right, int stride) {
    int32_t sum = 0;
    for (int i = 0; i < out_height; i++) {
        int r = i * stride + down;
        if (r < 0 || r >= height) continue;
        for (int j = 0; j < out_width; j++) {
            int s = j * stride + right;
            if (s < 0 || s >= width) continue;
            sum += q[(i * out_width + j) * outputs + o] * (x[(r * width + s) * inputs + k] - zero);
        }
    }
    return sum;
}

/* As tiny_update_block, of an int8 gradient: four outputs by two inputs. */
TINY_KERNEL void tiny_update_block_int8(const int8_t *q, float scale, int positions, int outputs, int o, const int8_t *x, int inputs,
                                        int c, int zero, const float *factors, int8_t *w, tiny_sgd s) {
    int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
    for (int p = 0; p < positions; p++) {
        const uint32_t four = tiny_four(q + p * outputs + o), even = TINY_SXTB16(four), odd = TINY_ODD(four);
        const int8_t *row = x + p * inputs + c;
        const int16_t a = (int16_t)(row[0] - zero), b = (int16_t)(row[1] - zero);
        a0 += a * (int16_t)even, a1 += a * (int16_t)odd, a2 += a * (int16_t)(even >> 16), a3 += a * (int16_t)(odd >> 16);
        b0 += b * (int16_t)even, b1 += b * (int16_t)odd, b2 += b * (int16_t)(even >> 16), b3 += b * (int16_t)(odd >> 16);
    }
    const int32_t sums[4][2] = {{a0, b0}, {a1, b1}, {a2, b2}, {a3, b3}};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            tiny_update_int8(w, (float)sums[i][k] * scale * factors[o + i], s, (o + i) * inputs + c + k);
}

TINY_KERNEL void tiny_update_weight_int8(const int8_t *q, const float *scale, int out_height, int out_width, int outputs,
                                         const int8_t *x, int height, int width, int inputs, int zero, int kh, int kw, int stride,
                                         int pad_h, int pad_w, const float *factors, int8_t *w, tiny_sgd s) {
    const int pointwise = kh == 1 && kw == 1 && stride == 1 && pad_h == 0 && pad_w == 0;
    const int blocks = pointwise ? inputs / 2 * 2 : 0, rows = outputs / 4 * 4;
    for (int o = 0; blocks && o < rows; o += 4)
        for (int c = 0; c < blocks; c += 2)
            tiny_update_block_int8(q, *scale, height * width, outputs, o, x, inputs, c, zero, factors, w, s);
    for (int o = 0; o < outputs; o++)
        for (int u = 0; u < kh; u++)
            for (int v = 0; v < kw; v++)
                for (int k = o < rows ? blocks : 0; k < inputs; k++) {
                    int32_t sum = tiny_correlation_int8(q, out_height, out_width, outputs, o, x, height, width, inputs, k, zero,
                                                        u - pad_h, v - pad_w, stride);
                    tiny_update_int8(w, (float)sum * *scale * factors[o], s, ((o * kh + u) * kw + v) * inputs + k);
                }
}

TINY_KERNEL void tiny_update_depthwise_int8(const int8_t *q, const float *scale, int out_height, int out_width, int channels,
                                            const uint16_t *chosen, const int8_t *x, int height, int width, int updated, int zero,
                                            int kh, int kw, int stride, int pad_h, int pad_w, const float *factors, int8_t *w,
                                            tiny_sgd s) {
    for (int k = 0; k < updated; k++) {
        int c = chosen ? chosen[k] : k;
        for (int u = 0; u < kh; u++)
            for (int v = 0; v < kw; v++) {
                int32_t sum = tiny_correlation_int8(q, out_height, out_width, channels, c, x, height, width, updated, k, zero,
                                                    u - pad_h, v - pad_w, stride);
                tiny_update_int8(w, (float)sum * *scale * factors[c], s, (u * kw + v) * updated + k);
            }
    }
}

/* -- gradients of parameters, with immediate updates --------------------------------------------------------------- */

TINY_KERNEL void tiny_update_bias(const float *g, int positions, int outputs, const float *factors, int32_t *bias, tiny_sgd s) {
    for (int o = 0; o < outputs; o++) {
        float sum = 0.0f;
        for (int p = 0; p < positions; p++) sum += g[p * outputs + o];
        tiny_update_int32(bias, sum * factors[o], s, o);
    }
}

/* The sum over all positions of the gradient of output o times the input k at a tap. */
TINY_KERNEL float tiny_correlation(const float *g, int out_height, int out_width, int outputs, int o, const int8_t *x,
                                   int height, int width, int inputs, int k, int zero, int down, int right, int stride) {
    float sum = 0.0f;
    for (int i = 0; i < out_height; i++) {
        int r = i * stride + down;
        if (r < 0 || r >= height) continue;
        for (int j = 0; j < out_width; j++) {
            int q = j * stride + right;
            if (q < 0 || q >= width) continue;
            sum += g[(i * out_width + j) * outputs + o] * (float)(x[(r * width + q) * inputs + k] - zero);
        }
    }
    return sum;
}

/* Updates four outputs by four inputs of pointwise weights, from output o and input c on. */
TINY_KERNEL void tiny_update_block(const float *g, int positions, int outputs, int o, const int8_t *x, int inputs, int c, int zero,
                                   const float *factors, int8_t *w, tiny_sgd s) {
    TINY_SUMS(a);
    TINY_SUMS(b);
    TINY_SUMS(c);
    TINY_SUMS(d);
    for (int p = 0; p < positions; p++) {
        const float *each = g + p * outputs + o;
        const int8_t *row = x + p * inputs + c;
        const float w0 = row[0] - zero, w1 = row[1] - zero, w2 = row[2] - zero, w3 = row[3] - zero;
        TINY_ADD_PRODUCTS(a, each[0]);
        TINY_ADD_PRODUCTS(b, each[1]);
        TINY_ADD_PRODUCTS(c, each[2]);
        TINY_ADD_PRODUCTS(d, each[3]);
    }
    const float sums[4][4] = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, {d0, d1, d2, d3}};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) tiny_update_int8(w, sums[i][k] * factors[o + i], s, (o + i) * inputs + c + k);
}

/* Updates weights (outputs, kh, kw, inputs). x has only the inputs whose weights train. */
TINY_KERNEL void tiny_update_weight(const float *g, int out_height, int out_width, int outputs, const int8_t *x, int height,
                                    int width, int inputs, int zero, int kh, int kw, int stride, int pad_h, int pad_w,
                                    const float *factors, int8_t *w, tiny_sgd s) {
    const int pointwise = kh == 1 && kw == 1 && stride == 1 && pad_h == 0 && pad_w == 0;
    const int blocks = pointwise ? inputs / 4 * 4 : 0, rows = outputs / 4 * 4;
    for (int o = 0; blocks && o < rows; o += 4)
        for (int c = 0; c < blocks; c += 4)
            tiny_update_block(g, height * width, outputs, o, x, inputs, c, zero, factors, w, s);
    for (int o = 0; o < outputs; o++)
        for (int u = 0; u < kh; u++)
            for (int v = 0; v < kw; v++)
                for (int k = o < rows ? blocks : 0; k < inputs; k++) {
                    float sum = tiny_correlation(g, out_height, out_width, outputs, o, x, height, width, inputs, k, zero,
                                                 u - pad_h, v - pad_w, stride);
                    tiny_update_int8(w, sum * factors[o], s, ((o * kh + u) * kw + v) * inputs + k);
                }
}

TINY_KERNEL void tiny_update_depthwise(const float *g, int out_height, int out_width, int channels, const uint16_t *chosen,
                                       const int8_t *x, int height, int width, int updated, int zero, int kh, int kw, int stride,
                                       int pad_h, int pad_w, const float *factors, int8_t *w, tiny_sgd s) {
    for (int k = 0; k < updated; k++) {
        int c = chosen ? chosen[k] : k;
        for (int u = 0; u < kh; u++)
            for (int v = 0; v < kw; v++) {
                float sum = tiny_correlation(g, out_height, out_width, channels, c, x, height, width, updated, k, zero,
                                             u - pad_h, v - pad_w, stride);
                tiny_update_int8(w, sum * factors[c], s, (u * kw + v) * updated + k);
            }
    }
}

/* Update the matrices of an adapter: up (outputs, rank) by the gradient of the accumulators, down (rank, inputs) by
 * the gradient of the hidden values. */
TINY_KERNEL void tiny_update_up(const float *g, int positions, int outputs, const float *factors, const float *hidden, int rank,
                                float *up, tiny_sgd s) {
    for (int o = 0; o < outputs; o++)
        for (int k = 0; k < rank; k++) {
            float sum = 0.0f;
            for (int p = 0; p < positions; p++) sum += g[p * outputs + o] * hidden[p * rank + k];
            tiny_update_float(up, sum * factors[o], s, o * rank + k);
        }
}

TINY_KERNEL void tiny_update_down(const float *g, int positions, int rank, const int8_t *x, int inputs, int zero, float scale,
                                  float *down, tiny_sgd s) {
    for (int k = 0; k < rank; k++)
        for (int i = 0; i < inputs; i++) {
            float sum = 0.0f;
            for (int p = 0; p < positions; p++) sum += g[p * rank + k] * (float)(x[p * inputs + i] - zero);
            tiny_update_float(down, sum * scale, s, k * inputs + i);
        }
}

#endif
