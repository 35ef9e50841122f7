/* Computes the gradient of a depthwise convolution by its weight, for float32 images in channels-last memory. See
   depthwise.c. */
#ifndef SMELT_DEPTHWISE_H
#define SMELT_DEPTHWISE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Sizes, and strides in elements; the channels of a pixel are adjacent in memory. */
typedef struct {
    int64_t batch, channels;
    int64_t rows, columns, grad_image, grad_row, grad_column; /* the gradient by the result */
    int64_t height, width, x_image, x_row, x_column;          /* the convolution's input */
    int64_t high, wide, w_channel, w_row, w_column;           /* the window: the gradient by the weight, written */
    int64_t stride[2], padding[2], dilation[2];
} smelt_depthwise;

/* w[c][r][s] = sum over images and pixels (y, z) of grad[.][c][y][z] x[.][c][y stride + r dilation - padding][...]. */
void smelt_depthwise_weight(const smelt_depthwise *d, const float *grad, const float *x, float *w);

extern PyMethodDef smelt_depthwise_methods[];
#endif
