/* A libcuda for tests: two devices, contexts that are small numbers, and a log of what was launched. */
#include <stdint.h>
#include <string.h>

enum { DRIVER_VERSION, LOAD, ATTRIBUTE, SET_ATTRIBUTE, LAUNCH, INIT, CALLS };
int fake_error[CALLS];    /* what a call answers */
int fake_version = 12040, fake_shared = 232448, fake_threads = 1024, fake_registers = 32, fake_parameters = 0;
int fake_loads = 0, fake_unloads = 0, fake_launches = 0, fake_fail_at = -1, fake_pushes = 0, fake_pops = 0;
int fake_mode = 1, fake_loaded_in = -1; /* the capture mode of the thread, now and at the last load */
int fake_allowed = 0;     /* dynamic shared memory that was asked for */
char fake_entry[128];
typedef struct {
    void *function, *stream, *context;
    unsigned grid[3], threads[3], shared;
    uint64_t values[64];
} Launched;
Launched fake_log[4096];

static _Thread_local void *current;
static _Thread_local void *under[8];
static _Thread_local int depth;
void fake_set_current(void *context) { current = context; }
void *fake_current(void) { return current; }

int cuInit(unsigned flags) { return fake_error[INIT]; }
int cuDriverGetVersion(int *version) { *version = fake_version; return fake_error[DRIVER_VERSION]; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < 2 ? 0 : 101; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 97 ? fake_shared : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(100 + device); return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxPushCurrent_v2(void *context) { under[depth++] = current; current = context; fake_pushes++; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = current; current = under[--depth]; fake_pops++; return 0; }
int cuModuleLoadData(void **module, const void *image) {
    if (fake_error[LOAD]) return fake_error[LOAD];
    fake_loaded_in = fake_mode;
    *module = (void *)(intptr_t)(1000 + ++fake_loads);
    return 0;
}
int cuModuleUnload(void *module) { fake_unloads++; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    strncpy(fake_entry, name, sizeof fake_entry - 1);
    *function = (char *)module + 1000000 + 1000 * ((intptr_t)current - 100);
    return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = attribute == 0 ? fake_threads : attribute == 4 ? fake_registers : 0;
    return fake_error[ATTRIBUTE];
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute == 8) fake_allowed = value;
    return fake_error[SET_ATTRIBUTE];
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    if (fake_launches == fake_fail_at) return fake_error[LAUNCH];
    Launched *l = &fake_log[fake_launches++ % 4096];
    *l = (Launched){function, stream, current, {x, y, z}, {tx, ty, tz}, shared, {0}};
    for (int i = 0; i < fake_parameters; i++) memcpy(&l->values[i], parameters[i], 8);
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { int before = fake_mode; fake_mode = *mode; *mode = before; return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    memcpy((void *)to, (void *)from, bytes); /* tests give memory of the host */
    return 0;
}
int cuGetErrorName(int error, const char **name) {
    *name = error == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : error == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" : "CUDA_ERROR_FAKE";
    return 0;
}
int cuGetErrorString(int error, const char **text) { *text = "as the test wants"; return 0; }
