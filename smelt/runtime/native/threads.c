/* See threads.h. The entry points are those that code compiled by GCC calls; libgomp, libiomp5 and libomp all have
   them. */
#define _GNU_SOURCE
#include "threads.h"
#include <dlfcn.h>
#include <stddef.h>

static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static void (*barrier)(void);
static int (*thread_number)(void);
static int (*max_threads)(void);
static int (*in_parallel)(void);
static int ready;

int smelt_threads_init(const char *path) {
    ready = 0;
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!library) return 0;
    *(void **)&parallel = dlsym(library, "GOMP_parallel");
    *(void **)&barrier = dlsym(library, "GOMP_barrier");
    *(void **)&thread_number = dlsym(library, "omp_get_thread_num");
    *(void **)&max_threads = dlsym(library, "omp_get_max_threads");
    *(void **)&in_parallel = dlsym(library, "omp_in_parallel");
    ready = parallel && barrier && thread_number && max_threads && in_parallel;
    return ready;
}

int smelt_threads_max(void) { return ready && !in_parallel() ? max_threads() : 1; }

void smelt_parallel(void (*body)(void *), void *data, int count) {
    if (count > 1)
        parallel(body, data, (unsigned)count, 0);
    else
        body(data);
}

int smelt_thread_index(void) { return ready ? thread_number() : 0; }

void smelt_barrier(void) {
    if (ready) barrier();
}
