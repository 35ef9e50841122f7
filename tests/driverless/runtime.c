/* A CUDA runtime without a driver, preloaded into a test's process: one H200 whose memory is the host's and whose
   kernels do nothing. PyTorch built for CUDA then traces, allocates and copies as on the real device; no result of a
   kernel means anything. What is not here stays with the real runtime, and fails there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <stdlib.h>
#include <string.h>
#include <vector_types.h>

#define OK(name, ...) cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
#define SET(name, value, first, ...) cudaError_t name(first out, ##__VA_ARGS__) { *out = value; return cudaSuccess; }

static long handle;

SET(cudaGetDeviceCount, 1, int *)
SET(cudaGetDevice, 0, int *)
SET(cudaDriverGetVersion, VERSION, int *)
SET(cudaRuntimeGetVersion, VERSION, int *)
OK(cudaSetDevice, int device)
OK(cudaDeviceSynchronize, void)
OK(cudaGetLastError, void)
OK(cudaPeekAtLastError, void)
SET(cudaDeviceCanAccessPeer, 0, int *, int a, int b)

static cudaError_t properties(struct cudaDeviceProp *p) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "NVIDIA H200 (tests)");
    p->major = 9;
    p->multiProcessorCount = 132;
    p->totalGlobalMem = 140ull << 30;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 232448;
    p->sharedMemPerMultiprocessor = 233472;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->textureAlignment = 512;
    p->l2CacheSize = 60 << 20;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) { return properties(p); }
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) { return properties(p); }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    switch (which) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

#define STREAM (cudaStream_t)(++handle * 64)
SET(cudaStreamCreate, STREAM, cudaStream_t *)
SET(cudaStreamCreateWithFlags, STREAM, cudaStream_t *, unsigned flags)
SET(cudaStreamCreateWithPriority, STREAM, cudaStream_t *, unsigned flags, int priority)
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = 0;
    return cudaSuccess;
}
OK(cudaStreamDestroy, cudaStream_t stream)
OK(cudaStreamQuery, cudaStream_t stream)
OK(cudaStreamSynchronize, cudaStream_t stream)
OK(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)

SET(cudaEventCreate, (cudaEvent_t)STREAM, cudaEvent_t *)
SET(cudaEventCreateWithFlags, (cudaEvent_t)STREAM, cudaEvent_t *, unsigned flags)
SET(cudaEventElapsedTime, 0, float *, cudaEvent_t begin, cudaEvent_t end)
OK(cudaEventDestroy, cudaEvent_t event)
OK(cudaEventQuery, cudaEvent_t event)
OK(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
OK(cudaEventRecordWithFlags, cudaEvent_t event, cudaStream_t stream, unsigned flags)
OK(cudaEventSynchronize, cudaEvent_t event)

static cudaError_t allocate(void **out, size_t bytes) {
    return posix_memalign(out, 512, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}
static cudaError_t release(void *memory) {
    free(memory);
    return cudaSuccess;
}
static cudaError_t copy(void *to, const void *from, size_t bytes) {
    memmove(to, from, bytes);
    return cudaSuccess;
}
static cudaError_t fill(void *to, int value, size_t bytes) {
    memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **out, size_t bytes) { return allocate(out, bytes); }
cudaError_t cudaMallocHost(void **out, size_t bytes) { return allocate(out, bytes); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) { return allocate(out, bytes); }
cudaError_t cudaFree(void *memory) { return release(memory); }
cudaError_t cudaFreeHost(void *memory) { return release(memory); }
OK(cudaHostRegister, void *memory, size_t bytes, unsigned flags)
OK(cudaHostUnregister, void *memory)
OK(cudaDeviceEnablePeerAccess, int peer, unsigned flags)
SET(cudaDeviceGetDefaultMemPool, (cudaMemPool_t)STREAM, cudaMemPool_t *, int device)
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *unused = *total = 140ull << 30;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) { return copy(to, from, n); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, n);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) { return fill(to, value, bytes); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) { return fill(to, value, bytes); }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *memory) {
    memset(out, 0, sizeof *out);
    out->type = cudaMemoryTypeDevice;
    out->devicePointer = (void *)memory;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel) {
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->binaryVersion = out->ptxVersion = 90;
    return cudaSuccess;
}
OK(cudaFuncSetAttribute, const void *kernel, enum cudaFuncAttribute which, int value)
SET(cudaOccupancyMaxActiveBlocksPerMultiprocessor, 1, int *, const void *kernel, int threads, size_t shared)
SET(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 1, int *, const void *k, int threads, size_t s, unsigned f)
OK(cudaLaunchKernel, const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
OK(cudaLaunchKernelExC, const cudaLaunchConfig_t *config, const void *kernel, void **arguments)

/* The driver's functions that PyTorch looks up itself; the library answers to the driver's name (-soname libcuda.so.1). */
cudaError_t cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    *entry = dlsym(RTLD_DEFAULT, name);
    if (found) *found = *entry ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *entry ? cudaSuccess : cudaErrorInvalidValue;
}
