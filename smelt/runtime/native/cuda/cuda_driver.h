/* The functions of NVIDIA's driver that smelt uses, declared here so that smelt can be built without CUDA headers.
 * Names and numbers are those of the CUDA driver API, which does not change them:
 * https://docs.nvidia.com/cuda/cuda-driver-api */
#ifndef SMELT_CUDA_DRIVER_H
#define SMELT_CUDA_DRIVER_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*device)(int *device, int ordinal);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*retain)(void **context, int device);
    int (*current)(void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*load)(void **module, const void *image);
    int (*unload)(void *module);
    int (*function)(void **function, void *module, const char *name);
    int (*attribute)(int *value, int attribute, void *function);
    int (*set_attribute)(void *function, int attribute, int value);
    int (*launch)(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                  unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra);
    int (*capture_mode)(int *mode);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*error_name)(int error, const char **name);
    int (*error_text)(int error, const char **text);
} smelt_cuda_api;

enum {
    SMELT_CUDA_MAX_THREADS = 0,     /* CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
    SMELT_CUDA_LOCAL_BYTES = 3,     /* CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES */
    SMELT_CUDA_REGISTERS = 4,       /* CU_FUNC_ATTRIBUTE_NUM_REGS */
    SMELT_CUDA_DYNAMIC_SHARED = 8,  /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    SMELT_CUDA_FREE_SHARED = 48 << 10, /* bytes of dynamic shared memory that a kernel may use without an attribute */
    SMELT_CUDA_MAX_DEVICES = 64,
    SMELT_CUDA_RELAXED = 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */
};

typedef struct {
    PyObject_HEAD
    void *library;
    smelt_cuda_api api;
    void *contexts[SMELT_CUDA_MAX_DEVICES]; /* retained primary contexts, which torch uses */
} smelt_cuda_driver;

/* Raises CudaError: "<doing>: CUDA_ERROR_NAME: text". Returns NULL. */
PyObject *smelt_cuda_fail(const smelt_cuda_driver *driver, int error, const char *doing);
/* Raises CudaError for a launch. An error inside of a kernel ends the context. Unless launches block, it is reported
 * at a later launch, and the message says so. */
PyObject *smelt_cuda_fail_launch(const smelt_cuda_driver *driver, int error, const char *kernel);
/* The primary context of a device; NULL with a Python error set. */
void *smelt_cuda_context(smelt_cuda_driver *driver, int ordinal);
#endif
