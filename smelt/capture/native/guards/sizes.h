/* Programs over sizes: see sizes.c. smelt/capture/guards/size_programs.py generates them. */
#ifndef SMELT_CAPTURE_SIZES_H
#define SMELT_CAPTURE_SIZES_H

#include "../native.h"

/* Python uses the position as the number of an operation. */
#define SIZE_OPS(X) \
    X(CONSTANT) X(VALUE) X(ADD) X(SUB) X(MUL) X(FLOORDIV) X(MOD) X(EQ) X(NE) X(LT) X(LE) X(GT) X(GE)
#define AS_SIZE_OP(name) Z_##name,
enum { SIZE_OPS(AS_SIZE_OP) Z_FIRST_COMPARISON = Z_EQ };

typedef struct SizeProgram SizeProgram;

extern const char *const size_ops[];
SizeProgram *size_program_new(PyObject *steps, Py_ssize_t count); /* over `count` values; NULL with an exception */
/* Evaluates a program: 1 if it holds; 0 if it does not, or if a value is not a plain int or a result overflows. */
int size_program_holds(const SizeProgram *program, const int32_t *fetches, PyObject **values);

#endif
