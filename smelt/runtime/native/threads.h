/* Parallel regions on the OpenMP runtime that torch has loaded. It is found at run time, so no second one is linked. */
#ifndef SMELT_THREADS_H
#define SMELT_THREADS_H

/* Resolves the runtime's entry points in the library at `path`, which is loaded; if it is NULL, regions run serially.
 * Returns 1 if parallel regions are available. */
int smelt_threads_init(const char *path);

/* Number of threads that a new region would get: the number set by torch.set_num_threads; 1 inside another region. */
int smelt_threads_max(void);

/* Runs body(data) on `count` threads and waits for all of them. */
void smelt_parallel(void (*body)(void *), void *data, int count);

/* The following functions may be called only inside of a region. */
int smelt_thread_index(void);
void smelt_barrier(void);
#endif
