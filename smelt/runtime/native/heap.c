/* A heap for large tensors. A training step frees and allocates hundreds of megabytes of gradients and saved
 * activations. malloc returns blocks of that size to the system, so every step would touch new pages. A page fault
 * costs 0.1 to 0.4 ms per megabyte (the upper end under virtualisation): 13 % of an eager BERT-base step on the
 * machine of docs/decisions.
 *
 * The heap is one range of addresses, which grows like a stack of chunks. Free neighbours are merged, so blocks of the
 * forward become gradients of the backward. Free chunks are listed by size class (four per power of two), and a bit
 * map marks the non-empty lists. Of the first few chunks of a class, the smallest that fits is used. Free pages are
 * returned to the system when, over several rounds of use, the peak of bytes in use was clearly below the resident
 * bytes. */
#define _GNU_SOURCE
#include "heap.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum {
    GRAIN = 256,            /* sizes are multiples of this */
    CLASSES = 64 * 4,
    LOOK = 24,              /* maximum number of free chunks of one class that are compared */
    PAGE = 4096,
    STEP = 64 << 20,        /* addresses are taken in multiples of this */
    ROUNDS = 4,             /* a check follows after allocations of this multiple of the resident bytes */
    SPARE = 64 << 20,       /* resident bytes beyond a quarter of the peak that are not returned */
};

typedef struct chunk {
    size_t size;        /* including this header; a multiple of GRAIN */
    size_t before;      /* size of the chunk below, 0 at the bottom */
    struct chunk *next, *previous; /* neighbours in the list of its class, when free */
    size_t used;        /* 1 or 0 */
    size_t absent;      /* bytes of a free chunk whose pages were returned to the system (estimate) */
    size_t unused[2];   /* the header is one cache line, so data stays aligned */
} chunk;
_Static_assert(sizeof(chunk) == 64, "header");

static struct {
    pthread_mutex_t lock;
    char *bottom, *top, *end; /* [bottom, top) contains the chunks */
    char *touched;            /* address below which pages were used since the last trim */
    size_t last;              /* size of the topmost chunk */
    chunk *free[CLASSES];
    uint64_t present[CLASSES / 64];
    size_t live, peak, handed, trims;
    size_t absent;            /* sum over all free chunks */
    int unavailable;
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The size class of a size: four per power of two, so the sizes of a class differ by less than a quarter. */
static int class_of(size_t size) {
    const int log = 63 - __builtin_clzll((unsigned long long)size);
    return log * 4 + (int)((size >> (log - 2)) & 3);
}

static void insert(chunk *c) {
    const int k = class_of(c->size);
    c->used = 0;
    heap.absent += c->absent;
    c->previous = NULL;
    c->next = heap.free[k];
    if (c->next) c->next->previous = c;
    heap.free[k] = c;
    heap.present[k / 64] |= 1ull << (k % 64);
}

static void remove_free(chunk *c) {
    const int k = class_of(c->size);
    heap.absent -= c->absent;
    if (c->next) c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else if (!(heap.free[k] = c->next))
        heap.present[k / 64] &= ~(1ull << (k % 64));
}

static chunk *above(chunk *c) { return (chunk *)((char *)c + c->size); }

/* The smallest of the first few free chunks of the class that have room for `size`. */
static chunk *best_of(int k, size_t size) {
    chunk *best = NULL;
    int looked = 0;
    for (chunk *c = heap.free[k]; c && looked < LOOK; c = c->next, looked++)
        if (c->size >= size && (!best || c->size < best->size)) best = c;
    return best;
}

static chunk *find(size_t size) {
    const int k = class_of(size);
    chunk *found = best_of(k, size);
    for (int word = (k + 1) / 64; !found && word < CLASSES / 64; word++) {
        uint64_t bits = heap.present[word];
        if (word == (k + 1) / 64) bits &= ~0ull << ((k + 1) % 64);
        if (bits) found = best_of(word * 64 + __builtin_ctzll(bits), size);
    }
    return found;
}

static void lock_for_fork(void) { pthread_mutex_lock(&heap.lock); }
static void unlock_after_fork(void) { pthread_mutex_unlock(&heap.lock); }

/* Finds a range of addresses in which the heap can grow. It is not reserved, since the address space may be limited. */
static int start(void) {
    if (heap.unavailable) return 0;
    const size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    for (size_t size = memory * 2; size >= (1u << 28); size /= 2) {
        void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) continue;
        munmap(range, size);
        heap.bottom = heap.top = heap.touched = heap.end = range;
        pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
        return 1;
    }
    heap.unavailable = 1;
    return 0;
}

/* Maps the addresses after the end. Returns 0 if they are in use or no more can be mapped. */
static int grow(size_t bytes) {
    const size_t step = (bytes + STEP - 1) & ~(size_t)(STEP - 1);
    char *range = mmap(heap.end, step, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (range == MAP_FAILED) return 0;
    if (range != heap.end) { /* a system without the flag mapped other addresses */
        munmap(range, step);
        return 0;
    }
    heap.end += step;
    return 1;
}

static chunk *extend(size_t size) {
    const size_t left = (size_t)(heap.end - heap.top);
    if (left < size && !grow(size - left)) return NULL;
    chunk *c = (chunk *)heap.top;
    c->size = size;
    c->before = heap.last;
    c->absent = 0;
    heap.last = size;
    heap.top += size;
    if (heap.top > heap.touched) heap.touched = heap.top;
    return c;
}

/* Splits a chunk after `size` bytes if the rest is large enough for a chunk. */
static void split(chunk *c, size_t size) {
    const size_t rest = c->size - size;
    if (rest < 4096) return;
    chunk *r = (chunk *)((char *)c + size);
    r->size = rest;
    r->before = size;
    r->absent = c->absent < rest ? c->absent : rest;
    c->size = size;
    if ((char *)above(r) == heap.top)
        heap.last = rest;
    else
        above(r)->before = rest;
    insert(r);
}

static void drop(char *from, char *to) {
    char *first = (char *)(((uintptr_t)from + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    char *last = (char *)((uintptr_t)to & ~(uintptr_t)(PAGE - 1));
    if (last > first) madvise(first, (size_t)(last - first), MADV_DONTNEED);
}

static void trim(void) {
    for (int k = 0; k < CLASSES; k++)
        for (chunk *c = heap.free[k]; c; c = c->next) {
            drop((char *)(c + 1), (char *)above(c));
            heap.absent += c->size - c->absent;
            c->absent = c->size;
        }
    if (heap.top) drop(heap.top, heap.touched);
    heap.touched = heap.top;
    heap.trims++;
}

/* Unmaps the addresses after the last chunk. */
static void shrink(void) {
    char *end = heap.bottom + (((size_t)(heap.top - heap.bottom) + STEP - 1) & ~(size_t)(STEP - 1));
    if (end < heap.end && munmap(end, (size_t)(heap.end - end)) == 0) heap.end = end;
}

static size_t resident(void) { return (size_t)(heap.touched - heap.bottom) - heap.absent; }

/* Returns the pages that the largest round of use did not need, after several rounds. */
static void check(void) {
    if (heap.handed < ROUNDS * resident()) return;
    if (resident() > heap.peak + heap.peak / 4 + SPARE) trim();
    heap.handed = 0;
    heap.peak = heap.live;
}

void *smelt_heap_take(size_t bytes) {
    const size_t size = (bytes + sizeof(chunk) + GRAIN - 1) & ~(size_t)(GRAIN - 1);
    pthread_mutex_lock(&heap.lock);
    chunk *c = NULL;
    if (heap.bottom || start()) {
        check();
        c = find(size);
        if (c) {
            remove_free(c);
            split(c, size);
        } else {
            c = extend(size);
        }
    }
    if (c) {
        c->used = 1;
        c->absent = 0;
        heap.live += c->size;
        heap.handed += c->size;
        if (heap.live > heap.peak) heap.peak = heap.live;
    }
    pthread_mutex_unlock(&heap.lock);
    return c ? c + 1 : NULL;
}

void smelt_heap_give(void *data) {
    chunk *c = (chunk *)data - 1;
    pthread_mutex_lock(&heap.lock);
    heap.live -= c->size;
    if (c->before) {
        chunk *below = (chunk *)((char *)c - c->before);
        if (!below->used) {
            remove_free(below);
            below->size += c->size; /* the merged chunk keeps its absent bytes */
            c = below;
        }
    }
    if ((char *)above(c) < heap.top && !above(c)->used) {
        remove_free(above(c));
        c->absent += above(c)->absent;
        c->size += above(c)->size;
    }
    if ((char *)above(c) == heap.top) {
        heap.top = (char *)c; /* the topmost chunk is removed */
        heap.last = c->before;
    } else {
        above(c)->before = c->size;
        insert(c);
    }
    pthread_mutex_unlock(&heap.lock);
}

void smelt_heap_trim(void) {
    pthread_mutex_lock(&heap.lock);
    trim();
    shrink();
    heap.handed = 0;
    heap.peak = heap.live;
    pthread_mutex_unlock(&heap.lock);
}

smelt_heap_state smelt_heap_report(void) {
    pthread_mutex_lock(&heap.lock);
    const smelt_heap_state state = {heap.live, heap.peak, resident(), heap.trims};
    pthread_mutex_unlock(&heap.lock);
    return state;
}
