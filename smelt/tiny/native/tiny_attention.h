/* Attention, layer norm, functions by table and low-rank adapters: forward, and backward for a training step. Float
 * sums are computed in the order of this code, which smelt/tiny/attention/simulate.py follows. For compiler flags, see
 * tiny_kernels.h. */
#ifndef TINY_ATTENTION_H
#define TINY_ATTENTION_H

#include "tiny_kernels.h"

TINY_KERNEL void tiny_lookup(const int8_t *x, const int8_t *table, int n, int8_t *y) {
    for (int i = 0; i < n; i++) y[i] = table[x[i] + 128];
}

/* gx may be g. */
TINY_KERNEL void tiny_lookup_backward(const float *g, const int8_t *x, const float *slopes, int n, float *gx) {
    for (int i = 0; i < n; i++) gx[i] = g[i] * slopes[x[i] + 128];
}

/* -- layer norm ---------------------------------------------------------------------------------------------------- */

/* 1 / sqrt(v) for v > 0: four Newton steps from an estimate that is computed from the bits of v. */
TINY_KERNEL float tiny_rsqrt(float v) {
    uint32_t bits;
    float r, half = 0.5f * v;
    memcpy(&bits, &v, 4);
    bits = 0x5F3759DFu - (bits >> 1);
    memcpy(&r, &bits, 4);
    for (int i = 0; i < 4; i++) r = r * (1.5f - half * r * r);
    return r;
}

/* Computes the mean of a position and the reciprocal of its standard deviation, both in units of the quantization step
 * of x. `share` is 1 / channels. */
TINY_KERNEL void tiny_moments(const int8_t *x, int channels, int zero, float share, float epsilon, float *mean, float *rate) {
    int32_t sum = 0;
    for (int c = 0; c < channels; c++) sum += x[c] - zero;
    float m = (float)sum * share, squares = 0.0f;
    for (int c = 0; c < channels; c++) {
        float d = (float)(x[c] - zero) - m;
        squares += d * d;
    }
    *mean = m;
    *rate = tiny_rsqrt(squares * share + epsilon);
}

/* y may be x. */
TINY_KERNEL void tiny_layer_norm(const int8_t *x, int positions, int channels, int zero, float share, float epsilon,
                                 const float *gain, const float *shift, int8_t *y, tiny_result r) {
    for (int p = 0; p < positions; p++) {
        float mean, rate;
        tiny_moments(x + p * channels, channels, zero, share, epsilon, &mean, &rate);
        for (int c = 0; c < channels; c++) {
            float unit = ((float)(x[p * channels + c] - zero) - mean) * rate;
            y[p * channels + c] = tiny_store(unit * gain[c] + shift[c], r, p * channels + c);
        }
    }
}

/* gx may be g. */
TINY_KERNEL void tiny_layer_norm_backward(const float *g, const int8_t *x, int positions, int channels, int zero, float share,
                                          float epsilon, const float *gain, float *gx) {
    for (int p = 0; p < positions; p++) {
        const int8_t *row = x + p * channels;
        float mean, rate, sum = 0.0f, along = 0.0f;
        tiny_moments(row, channels, zero, share, epsilon, &mean, &rate);
        for (int c = 0; c < channels; c++) {
            float each = g[p * channels + c] * gain[c];
            sum += each;
            along += each * (((float)(row[c] - zero) - mean) * rate);
        }
        sum *= share;
        along *= share;
        for (int c = 0; c < channels; c++) {
            float unit = ((float)(row[c] - zero) - mean) * rate;
            gx[p * channels + c] = (g[p * channels + c] * gain[c] - sum - unit * along) * rate;
        }
    }
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

/* One of the operands q, k and v. at: its first channel; apart: number of channels of its tensor; zero: its zero
 * point. */
typedef struct {
    const int8_t *at;
    int apart, zero;
} tiny_operand;

/* sum of (x - x_zero) * (y - y_zero) */
TINY_KERNEL int32_t tiny_product(const int8_t *x, int x_zero, const int8_t *y, int y_zero, int n) {
    int32_t sum = 0;
    int i = 0;
#if defined(TINY_DUAL_MAC) && TINY_DUAL_MAC
    const uint32_t a = (uint16_t)-x_zero | (uint32_t)(uint16_t)-x_zero << 16;
    const uint32_t b = (uint16_t)-y_zero | (uint32_t)(uint16_t)-y_zero << 16;
    for (; i + 4 <= n; i += 4) {
        uint32_t u = tiny_four(x + i), v = tiny_four(y + i);
        sum = TINY_SMLAD(TINY_SXTAB16(a, u), TINY_SXTAB16(b, v), sum);
        sum = TINY_SMLAD(TINY_SXTAB16(a, u >> 8 | u << 24), TINY_SXTAB16(b, v >> 8 | v << 24), sum);
    }
#endif
    for (; i < n; i++) sum += (x[i] - x_zero) * (y[i] - y_zero);
    return sum;
}

/* Computes the attention weights of a query over all keys as integers; the largest score has the weight `most`. Writes
 * their bits to `row`; returns their sum. */
TINY_KERNEL int32_t tiny_weights(const int8_t *query, int q_zero, tiny_operand k, int keys, int width, float scale, float most,
                                 float *row) {
    float high = 0.0f;
    int32_t sum = 0;
    for (int j = 0; j < keys; j++) {
        row[j] = (float)tiny_product(query, q_zero, k.at + j * k.apart, k.zero, width) * scale;
        high = j == 0 || row[j] > high ? row[j] : high;
    }
    for (int j = 0; j < keys; j++) {
        int32_t weight = (int32_t)tiny_round(tiny_exp(row[j] - high) * most);
        memcpy(row + j, &weight, 4);
        sum += weight;
    }
    return sum;
}

TINY_KERNEL int32_t tiny_bits(const float *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* softmax(q k^T) v for each head; the result has `wide` channels per head. */
TINY_KERNEL void tiny_attention(tiny_operand q, int queries, tiny_operand k, tiny_operand v, int keys, int heads, int width,
                                int wide, float scale, float most, float value_scale, int8_t *y, tiny_result r, float *row) {
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < queries; i++) {
            tiny_operand key = {k.at + h * width, k.apart, k.zero};
            int32_t sum = tiny_weights(q.at + i * q.apart + h * width, q.zero, key, keys, width, scale, most, row);
            float each = value_scale / (float)sum;
            for (int d = 0; d < wide; d++) {
                int32_t total = 0;
                for (int j = 0; j < keys; j++) total += tiny_bits(row + j) * (v.at[j * v.apart + h * wide + d] - v.zero);
                int index = (i * heads + h) * wide + d;
                y[index] = tiny_store((float)total * each, r, index);
            }
        }
}

/* Adds the gradients of q, k and v, in units of their quantization steps, to gq, gk and gv, which have the layouts of
 * q, k and v. Each of the three may be 0 to omit it. */
TINY_KERNEL void tiny_attention_backward(const float *g, tiny_operand q, int queries, tiny_operand k, tiny_operand v, int keys,
                                         int heads, int width, int wide, float scale, float most, float value_scale, float *gq,
                                         float *gk, float *gv, float *p, float *ds) {
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < queries; i++) {
            const int8_t *query = q.at + i * q.apart + h * width;
            const float *gy = g + (i * heads + h) * wide;
            tiny_operand key = {k.at + h * width, k.apart, k.zero};
            float sum = (float)tiny_weights(query, q.zero, key, keys, width, scale, most, p), mean = 0.0f;
            for (int j = 0; j < keys; j++) {
                p[j] = (float)tiny_bits(p + j) / sum;
                float each = 0.0f;
                for (int d = 0; d < wide; d++) each += gy[d] * (float)(v.at[j * v.apart + h * wide + d] - v.zero);
                ds[j] = each * value_scale;
                mean += p[j] * ds[j];
            }
            for (int j = 0; j < keys; j++) {
                float of_value = p[j] * value_scale, of_score = p[j] * (ds[j] - mean) * scale;
                if (gv)
                    for (int d = 0; d < wide; d++) gv[j * v.apart + h * wide + d] += gy[d] * of_value;
                if (gq)
                    for (int c = 0; c < width; c++)
                        gq[i * q.apart + h * width + c] += of_score * (float)(key.at[j * k.apart + c] - k.zero);
                if (gk)
                    for (int c = 0; c < width; c++) gk[j * k.apart + h * width + c] += of_score * (float)(query[c] - q.zero);
            }
        }
}

/* -- low-rank adapters --------------------------------------------------------------------------------------------- */

/* y (positions, rank) = x w^T * scale, w (rank, inputs) */
TINY_KERNEL void tiny_adapter_down(const int8_t *x, int positions, int inputs, int zero, float scale, const float *w, int rank,
                                   float *y) {
    for (int p = 0; p < positions; p++)
        for (int k = 0; k < rank; k++) {
            float sum = 0.0f;
            for (int i = 0; i < inputs; i++) sum += (float)(x[p * inputs + i] - zero) * w[k * inputs + i];
            y[p * rank + k] = sum * scale;
        }
}

/* The gradient of the hidden values, computed from the gradient of the accumulators; `factors` convert that to the
 * gradient of real results. */
TINY_KERNEL void tiny_adapter_hidden(const float *g, int positions, int outputs, const float *factors, const float *up, int rank,
                                     float *gy) {
    for (int p = 0; p < positions; p++)
        for (int k = 0; k < rank; k++) {
            float sum = 0.0f;
            for (int o = 0; o < outputs; o++) sum += g[p * outputs + o] * factors[o] * up[o * rank + k];
            gy[p * rank + k] = sum;
        }
}

/* gx may be g. */
TINY_KERNEL void tiny_adapter_backward(const float *g, const float *hidden, int positions, int inputs, float scale,
                                       const float *w, int rank, float *gx) {
    for (int p = 0; p < positions; p++)
        for (int i = 0; i < inputs; i++) {
            float sum = 0.0f;
            for (int k = 0; k < rank; k++) sum += hidden[p * rank + k] * w[k * inputs + i];
            gx[p * inputs + i] = g[p * inputs + i] + sum * scale;
        }
}

#endif
