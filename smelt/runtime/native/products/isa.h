/* Definitions for kernels of several instruction sets: the functions' attributes, names with a suffix, integer
   functions. */
#ifndef SMELT_ISA_H
#define SMELT_ISA_H
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define SMELT_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define SMELT_AVX2 __attribute__((target("avx2,fma")))
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

static inline int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t up(int64_t x, int64_t y) { return (x + y - 1) / y; }
#endif
