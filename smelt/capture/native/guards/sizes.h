/* Programs over sizes: see sizes.c. smelt/capture/guards/size_programs.py generates them. */
#ifndef SMELT_CAPTURE_SIZES_H
#define SMELT_CAPTURE_SIZES_H

#include "../native.h"

/* Order is the number that Python sees. */
#define SIZE_OPS(X) \
    X(CONSTANT) X(VALUE) X(ADD) X(SUB) X(MUL) X(FLOORDIV) X(MOD) X(EQ) X(NE) X(LT) X(LE) X(GT) X(GE)
#define AS_SIZE_OP(name) Z_##name,
enum { SIZE_OPS(AS_SIZE_OP) Z_FIRST_COMPARISON = Z_EQ };

typedef struct SizeProgram SizeProgram;

extern const char *const size_ops[];
SizeProgram *size_program_new(PyObject *steps, Py_ssize_t count); /* over `count` values; NULL with an exception */
/* 1: holds; 0: does not, or not known: a value is no plain int, or a result overflows */
int size_program_holds(const SizeProgram *program, const int32_t *fetches, PyObject **values);

#endif
