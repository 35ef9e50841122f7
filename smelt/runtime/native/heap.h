/* A heap for the tensors that programs return: freed blocks stay mapped and are reused. See heap.c. */
#ifndef SMELT_HEAP_H
#define SMELT_HEAP_H
#include <stddef.h>
#include <stdint.h>

/* A block of at least `bytes`, aligned to 64; NULL when the heap is full or unavailable. */
void *smelt_heap_take(size_t bytes);
/* Returns a block; any thread. */
void smelt_heap_give(void *data);
/* Gives the pages of free blocks back to the system. */
void smelt_heap_trim(void);

typedef struct {
    size_t live;     /* bytes handed out */
    size_t peak;     /* most bytes handed out at a time since the last check */
    size_t resident; /* bytes that may occupy memory, handed out or not */
    size_t trims;    /* times that free pages were given back */
} smelt_heap_state;
smelt_heap_state smelt_heap_report(void);
#endif
