/* Parallel regions on the OpenMP runtime that torch already loaded, found at run time: no second one is ever linked. */
#ifndef SMELT_THREADS_H
#define SMELT_THREADS_H

/* Resolve the runtime's entry points in the library at `path` (already loaded), or run serially when path is NULL.
 * Returns 1 when parallel regions are available. */
int smelt_threads_init(const char *path);

/* Threads that a region started now would get: what torch.set_num_threads set; 1 inside another region. */
int smelt_threads_max(void);

/* Run body(data) on `count` threads and wait for all of them. */
void smelt_parallel(void (*body)(void *), void *data, int count);

/* Inside a region. */
int smelt_thread_index(void);
void smelt_barrier(void);
#endif
