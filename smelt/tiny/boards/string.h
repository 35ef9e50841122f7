/* The functions of <string.h> that programs use without a C library; memory.c defines them. */
#ifndef STRING_H
#define STRING_H
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

/* A freestanding compiler would otherwise call memcpy where one load of a word suffices. */
#define memcpy __builtin_memcpy
#define memmove __builtin_memmove
#define memset __builtin_memset
#define memcmp __builtin_memcmp

#endif
