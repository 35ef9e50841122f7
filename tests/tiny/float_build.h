/* A training step as one writes it down first: float32, plain loops, every gradient, whole tensors. What the generated
   programs are compared with; no kernel of the product is used but for exp and log, since boards have no libm. */
#include "tiny_train.h"

static void conv(const float *x, int height, int width, int inputs, const float *w, const float *bias, int outputs, int kh,
                 int kw, int stride, int pad_h, int pad_w, float low, float high, float *y, int out_height, int out_width)
{
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int o = 0; o < outputs; o++) {
                float sum = bias[o];
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) {
                        int r = i * stride + u - pad_h, q = j * stride + v - pad_w;
                        if (r < 0 || r >= height || q < 0 || q >= width) continue;
                        for (int c = 0; c < inputs; c++)
                            sum += x[(r * width + q) * inputs + c] * w[((o * kh + u) * kw + v) * inputs + c];
                    }
                y[(i * out_width + j) * outputs + o] = sum < low ? low : sum > high ? high : sum;
            }
}

static void conv_backward(const float *x, float *gx, int height, int width, int inputs, const float *w, float *gw, float *gb,
                          int outputs, int kh, int kw, int stride, int pad_h, int pad_w, float low, float high,
                          const float *y, const float *gy, int out_height, int out_width)
{
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int o = 0; o < outputs; o++) {
                int at = (i * out_width + j) * outputs + o;
                float g = y[at] > low && y[at] < high ? gy[at] : 0.0f;
                gb[o] += g;
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) {
                        int r = i * stride + u - pad_h, q = j * stride + v - pad_w;
                        if (r < 0 || r >= height || q < 0 || q >= width) continue;
                        for (int c = 0; c < inputs; c++) {
                            gx[(r * width + q) * inputs + c] += g * w[((o * kh + u) * kw + v) * inputs + c];
                            gw[((o * kh + u) * kw + v) * inputs + c] += g * x[(r * width + q) * inputs + c];
                        }
                    }
            }
}

static void depthwise(const float *x, int height, int width, const float *w, const float *bias, int channels, int kh, int kw,
                      int stride, int pad_h, int pad_w, float low, float high, float *y, int out_height, int out_width)
{
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int c = 0; c < channels; c++) {
                float sum = bias[c];
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) {
                        int r = i * stride + u - pad_h, q = j * stride + v - pad_w;
                        if (r < 0 || r >= height || q < 0 || q >= width) continue;
                        sum += x[(r * width + q) * channels + c] * w[(u * kw + v) * channels + c];
                    }
                y[(i * out_width + j) * channels + c] = sum < low ? low : sum > high ? high : sum;
            }
}

static void depthwise_backward(const float *x, float *gx, int height, int width, const float *w, float *gw, float *gb,
                               int channels, int kh, int kw, int stride, int pad_h, int pad_w, float low, float high,
                               const float *y, const float *gy, int out_height, int out_width)
{
    for (int i = 0; i < out_height; i++)
        for (int j = 0; j < out_width; j++)
            for (int c = 0; c < channels; c++) {
                int at = (i * out_width + j) * channels + c;
                float g = y[at] > low && y[at] < high ? gy[at] : 0.0f;
                gb[c] += g;
                for (int u = 0; u < kh; u++)
                    for (int v = 0; v < kw; v++) {
                        int r = i * stride + u - pad_h, q = j * stride + v - pad_w;
                        if (r < 0 || r >= height || q < 0 || q >= width) continue;
                        gx[(r * width + q) * channels + c] += g * w[(u * kw + v) * channels + c];
                        gw[(u * kw + v) * channels + c] += g * x[(r * width + q) * channels + c];
                    }
            }
}

static void add(const float *a, const float *b, int n, float low, float high, float *y)
{
    for (int i = 0; i < n; i++) y[i] = a[i] + b[i] < low ? low : a[i] + b[i] > high ? high : a[i] + b[i];
}

static void add_backward(float *ga, float *gb, int n, float low, float high, const float *y, const float *gy)
{
    for (int i = 0; i < n; i++) {
        float g = y[i] > low && y[i] < high ? gy[i] : 0.0f;
        ga[i] += g;
        gb[i] += g;
    }
}

static void pool(const float *x, int positions, int channels, float *y)
{
    for (int c = 0; c < channels; c++) {
        float sum = 0.0f;
        for (int p = 0; p < positions; p++) sum += x[p * channels + c];
        y[c] = sum / (float)positions;
    }
}

static void pool_backward(float *gx, int positions, int channels, const float *gy)
{
    for (int c = 0; c < channels; c++)
        for (int p = 0; p < positions; p++) gx[p * channels + c] += gy[c] / (float)positions;
}

static void zero(float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = 0.0f;
}

static void apply(float *w, const float *g, int n, float rate)
{
    for (int i = 0; i < n; i++) w[i] -= rate * g[i];
}
