/* A heap for the tensors that programs return: freed blocks stay mapped and are reused. See heap.c. */
#ifndef SMELT_HEAP_H
#define SMELT_HEAP_H
#include <stddef.h>
#include <stdint.h>

/* Allocates a block of at least `bytes`, aligned to 64 bytes; NULL if the heap is full or unavailable. */
void *smelt_heap_take(size_t bytes);
/* Frees a block, on any thread. */
void smelt_heap_give(void *data);
/* Returns the pages of free blocks to the system. */
void smelt_heap_trim(void);

typedef struct {
    size_t live;     /* bytes of allocated blocks */
    size_t peak;     /* maximum of `live` since the last check */
    size_t resident; /* bytes that may occupy memory, in allocated and free blocks */
    size_t trims;    /* number of times that free pages were returned */
} smelt_heap_state;
smelt_heap_state smelt_heap_report(void);
#endif
