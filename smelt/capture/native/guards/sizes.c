/* Comparisons of integer expressions, for guards on sizes: programs for a stack machine, (op, argument, op, argument
 * ...). A comparison pops two numbers, and ends the program with 0 if it does not hold. */
#include "sizes.h"

enum { MAX_STACK_DEPTH = 32 };

#define AS_OP(name) #name,
const char *const size_ops[] = {SIZE_OPS(AS_OP)};
#undef AS_OP
enum { SIZE_OP_COUNT = sizeof size_ops / sizeof *size_ops };

struct SizeProgram {
    Py_ssize_t length;
    struct {
        int op;
        int64_t argument;
    } steps[];
};

/* Whether the steps of a program are valid and the depth of its stack stays within the limit. */
static int is_well_formed(const SizeProgram *program, Py_ssize_t count) {
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < program->length; i++) {
        int op = program->steps[i].op;
        int64_t argument = program->steps[i].argument;
        if (op == Z_CONSTANT || op == Z_VALUE) {
            if (op == Z_VALUE && (argument < 0 || argument >= count)) return 0;
            if (++depth > MAX_STACK_DEPTH) return 0;
        } else {
            if (depth < 2) return 0;
            depth -= op >= Z_FIRST_COMPARISON ? 2 : 1;
        }
    }
    return depth == 0;
}

SizeProgram *size_program_new(PyObject *steps, Py_ssize_t count) {
    Py_ssize_t length = PyTuple_GET_SIZE(steps) / 2;
    SizeProgram *program = PyMem_Calloc(1, sizeof(SizeProgram) + (size_t)length * sizeof *program->steps);
    if (!program) return (SizeProgram *)PyErr_NoMemory();
    program->length = length;
    int known = PyTuple_GET_SIZE(steps) % 2 == 0;
    for (Py_ssize_t i = 0; known && i < length; i++) {
        PyObject *op = PyTuple_GET_ITEM(steps, 2 * i), *argument = PyTuple_GET_ITEM(steps, 2 * i + 1);
        known = PyLong_Check(op) && PyLong_Check(argument);
        if (!known) break;
        program->steps[i].op = (int)PyLong_AsLong(op);
        program->steps[i].argument = PyLong_AsLongLong(argument);
        known = !PyErr_Occurred() && program->steps[i].op >= 0 && program->steps[i].op < SIZE_OP_COUNT;
    }
    if (known && is_well_formed(program, count)) return program;
    PyMem_Free(program);
    PyErr_Clear();
    PyErr_SetString(PyExc_ValueError, "no program of sizes");
    return NULL;
}

static int number_of(PyObject *value, int64_t *number) {
    if (!PyLong_CheckExact(value)) return 0;
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
}

static int64_t floor_division(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

/* Replaces a by `a op b`; returns 0 if the result overflows or is undefined. */
static int compute(int op, int64_t *a, int64_t b) {
    switch (op) {
    case Z_ADD: return !__builtin_add_overflow(*a, b, a);
    case Z_SUB: return !__builtin_sub_overflow(*a, b, a);
    case Z_MUL: return !__builtin_mul_overflow(*a, b, a);
    case Z_FLOORDIV:
    case Z_MOD:
        if (b == 0 || (b == -1 && *a == INT64_MIN)) return 0;
        *a = op == Z_FLOORDIV ? floor_division(*a, b) : *a - floor_division(*a, b) * b;
        return 1;
    }
    return 0;
}

static int compare(int op, int64_t a, int64_t b) {
    switch (op) {
    case Z_EQ: return a == b;
    case Z_NE: return a != b;
    case Z_LT: return a < b;
    case Z_LE: return a <= b;
    case Z_GT: return a > b;
    case Z_GE: return a >= b;
    }
    return 0;
}

int size_program_holds(const SizeProgram *program, const int32_t *fetches, PyObject **values) {
    int64_t stack[MAX_STACK_DEPTH], *top = stack; /* top points after the last number */
    for (Py_ssize_t i = 0; i < program->length; i++) {
        int op = program->steps[i].op;
        int64_t argument = program->steps[i].argument;
        if (op == Z_CONSTANT) *top++ = argument;
        else if (op == Z_VALUE) {
            if (!number_of(values[fetches[argument]], top++)) return 0;
        } else if (op < Z_FIRST_COMPARISON) {
            top--;
            if (!compute(op, top - 1, *top)) return 0;
        } else {
            top -= 2;
            if (!compare(op, top[0], top[1])) return 0;
        }
    }
    return 1;
}
