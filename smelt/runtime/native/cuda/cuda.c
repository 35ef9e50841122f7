/* Driver(library): NVIDIA's driver, which is opened by name when the first GPU program is made. It loads kernels.
 *
 * A kernel is loaded into the device's primary context, which torch uses, and stays loaded until the process ends. The
 * calling thread's context is restored afterwards. Errors are raised as CudaError, whose `code` is the driver's. */
#include "cuda.h"
#include "cuda_driver.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static PyObject *cuda_error;

static int ends_context(int error);

/* The message that a kernel reported before it trapped, as a new reference; None if there is no message. Never
 * raises. */
static PyObject *kernel_report(int error) {
    PyObject *module = ends_context(error) ? PyImport_ImportModule("smelt.abi.device_checks") : NULL;
    PyObject *report = module ? PyObject_CallMethod(module, "failure", NULL) : NULL;
    Py_XDECREF(module);
    if (!report) PyErr_Clear();
    return report ? report : Py_NewRef(Py_None);
}

PyObject *smelt_cuda_fail(const smelt_cuda_driver *driver, int error, const char *doing) {
    const char *name = NULL, *text = NULL;
    driver->api.error_name(error, &name);
    driver->api.error_text(error, &text);
    name = name ? name : "unknown error";
    text = text ? text : "";
    PyObject *report = kernel_report(error);
    PyObject *message = report == Py_None ? PyUnicode_FromFormat("%s: %s: %s", doing, name, text)
                                        : PyUnicode_FromFormat("CUDA error: device-side assert triggered: %S (%s: %s)",
                                                               report, name, text);
    Py_DECREF(report);
    PyObject *exception = message ? PyObject_CallOneArg(cuda_error, message) : NULL;
    PyObject *code = exception ? PyLong_FromLong(error) : NULL;
    if (code && PyObject_SetAttrString(exception, "code", code) == 0) PyErr_SetObject(cuda_error, exception);
    Py_XDECREF(code);
    Py_XDECREF(exception);
    Py_XDECREF(message);
    return NULL;
}

/* Whether the error occurred inside of a kernel, after which the context cannot be used. */
static int ends_context(int error) {
    switch (error) {
    case 214: /* an uncorrectable memory error */
    case 226:
    case 700: /* an illegal address */
    case 702: /* a timeout of a kernel */
    case 709:
    case 710: /* an assertion in a kernel */
    case 714:
    case 715:
    case 716: /* a misaligned address */
    case 717:
    case 718:
    case 719: /* another error */
        return 1;
    default:
        return 0;
    }
}

PyObject *smelt_cuda_fail_launch(const smelt_cuda_driver *driver, int error, const char *kernel) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    char doing[640];
    if (!ends_context(error))
        PyOS_snprintf(doing, sizeof doing, "launching kernel '%.200s'", kernel);
    else if (blocking && strcmp(blocking, "1") == 0)
        PyOS_snprintf(doing, sizeof doing,
                      "kernel '%.200s' failed on the GPU; its CUDA context is lost, and nothing runs there until the "
                      "process is started anew", kernel);
    else
        PyOS_snprintf(doing, sizeof doing,
                      "a kernel failed on the GPU, found when kernel '%.200s' was launched after it; the CUDA context "
                      "is lost, and nothing runs there until the process is started anew (CUDA_LAUNCH_BLOCKING=1 names "
                      "the kernel that failed)", kernel);
    return smelt_cuda_fail(driver, error, doing);
}

static int resolve(void *library, smelt_cuda_api *api) {
    const struct {
        const char *name;
        void **to;
    } wanted[] = {
        {"cuInit", (void **)&api->init},
        {"cuDriverGetVersion", (void **)&api->driver_version},
        {"cuDeviceGet", (void **)&api->device},
        {"cuDeviceGetAttribute", (void **)&api->device_attribute},
        {"cuDevicePrimaryCtxRetain", (void **)&api->retain},
        {"cuCtxGetCurrent", (void **)&api->current},
        {"cuCtxPushCurrent_v2", (void **)&api->push},
        {"cuCtxPopCurrent_v2", (void **)&api->pop},
        {"cuModuleLoadData", (void **)&api->load},
        {"cuModuleUnload", (void **)&api->unload},
        {"cuModuleGetFunction", (void **)&api->function},
        {"cuFuncGetAttribute", (void **)&api->attribute},
        {"cuFuncSetAttribute", (void **)&api->set_attribute},
        {"cuLaunchKernel", (void **)&api->launch},
        {"cuThreadExchangeStreamCaptureMode", (void **)&api->capture_mode},
        {"cuMemcpyDtoDAsync_v2", (void **)&api->copy},
        {"cuGetErrorName", (void **)&api->error_name},
        {"cuGetErrorString", (void **)&api->error_text},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(library, wanted[i].name);
        if (!*wanted[i].to) {
            PyErr_Format(PyExc_OSError, "the driver has no function %s", wanted[i].name);
            return 0;
        }
    }
    return 1;
}

static PyObject *driver_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return PyErr_Format(PyExc_OSError, "%s", dlerror());
    smelt_cuda_driver *driver = (smelt_cuda_driver *)type->tp_alloc(type, 0);
    if (!driver) return NULL;
    driver->library = library; /* never closed, since kernels stay loaded */
    if (!resolve(library, &driver->api)) {
        Py_DECREF(driver);
        return NULL;
    }
    const int error = driver->api.init(0);
    if (error) {
        smelt_cuda_fail(driver, error, "starting the driver");
        Py_DECREF(driver);
        return NULL;
    }
    return (PyObject *)driver;
}

static void driver_dealloc(PyObject *driver) { Py_TYPE(driver)->tp_free(driver); }

void *smelt_cuda_context(smelt_cuda_driver *driver, int ordinal) {
    if (ordinal < 0 || ordinal >= SMELT_CUDA_MAX_DEVICES) {
        PyErr_Format(PyExc_ValueError, "device %d", ordinal);
        return NULL;
    }
    if (!driver->contexts[ordinal]) {
        int device = 0;
        int error = driver->api.device(&device, ordinal);
        if (!error) error = driver->api.retain(&driver->contexts[ordinal], device);
        if (error) {
            driver->contexts[ordinal] = NULL;
            return smelt_cuda_fail(driver, error, "entering the device");
        }
    }
    return driver->contexts[ordinal];
}

typedef struct {
    const char *entry;
    int shared, registers, local_bytes, max_threads;
    void *module, *function;
} Loading;

static int load_function(const smelt_cuda_api *api, const void *image, Loading *to, const char **doing) {
    *doing = "loading a kernel";
    int error = api->load(&to->module, image);
    if (error) return error;
    *doing = "finding a kernel's function";
    error = api->function(&to->function, to->module, to->entry);
    if (!error) error = api->attribute(&to->registers, SMELT_CUDA_REGISTERS, to->function);
    if (!error) error = api->attribute(&to->local_bytes, SMELT_CUDA_LOCAL_BYTES, to->function);
    if (!error) error = api->attribute(&to->max_threads, SMELT_CUDA_MAX_THREADS, to->function);
    if (!error && to->shared > SMELT_CUDA_FREE_SHARED) {
        *doing = "giving a kernel its shared memory";
        error = api->set_attribute(to->function, SMELT_CUDA_DYNAMIC_SHARED, to->shared);
    }
    if (error) api->unload(to->module);
    return error;
}

static PyObject *driver_load(PyObject *self, PyObject *args) {
    smelt_cuda_driver *driver = (smelt_cuda_driver *)self;
    int ordinal, error;
    Py_buffer image;
    Loading kernel = {0};
    if (!PyArg_ParseTuple(args, "iy*si", &ordinal, &image, &kernel.entry, &kernel.shared)) return NULL;
    void *context = smelt_cuda_context(driver, ordinal), *before;
    if (!context) {
        PyBuffer_Release(&image);
        return NULL;
    }
    const char *doing = "entering the device";
    int mode = SMELT_CUDA_RELAXED; /* the first use of a kernel may occur while its thread records a stream */
    Py_BEGIN_ALLOW_THREADS
    error = driver->api.push(context);
    if (!error) {
        driver->api.capture_mode(&mode);
        error = load_function(&driver->api, image.buf, &kernel, &doing);
        driver->api.capture_mode(&mode);
        driver->api.pop(&before);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&image);
    if (error) return smelt_cuda_fail(driver, error, doing);
    return Py_BuildValue("Kiii", (unsigned long long)(uintptr_t)kernel.function, kernel.registers, kernel.local_bytes,
                         kernel.max_threads);
}

static PyObject *driver_version(PyObject *self, PyObject *unused) {
    smelt_cuda_driver *driver = (smelt_cuda_driver *)self;
    int version = 0;
    const int error = driver->api.driver_version(&version);
    return error ? smelt_cuda_fail(driver, error, "asking for the version") : PyLong_FromLong(version);
}

static PyObject *driver_attribute(PyObject *self, PyObject *args) {
    smelt_cuda_driver *driver = (smelt_cuda_driver *)self;
    int ordinal, attribute, device = 0, value = 0;
    if (!PyArg_ParseTuple(args, "ii", &ordinal, &attribute)) return NULL;
    int error = driver->api.device(&device, ordinal);
    if (!error) error = driver->api.device_attribute(&value, attribute, device);
    return error ? smelt_cuda_fail(driver, error, "asking about the device") : PyLong_FromLong(value);
}

static PyObject *driver_copy(PyObject *self, PyObject *args) {
    smelt_cuda_driver *driver = (smelt_cuda_driver *)self;
    int ordinal, error;
    unsigned long long to, from, stream;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(args, "iKKnK", &ordinal, &to, &from, &bytes, &stream)) return NULL;
    void *context = smelt_cuda_context(driver, ordinal), *before;
    if (!context) return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = driver->api.push(context);
    if (!error) {
        error = driver->api.copy(to, from, (size_t)bytes, (void *)(uintptr_t)stream);
        driver->api.pop(&before);
    }
    Py_END_ALLOW_THREADS
    if (error) return smelt_cuda_fail(driver, error, "copying memory of the device");
    Py_RETURN_NONE;
}

static PyMethodDef driver_methods[] = {
    {"load", driver_load, METH_VARARGS,
     "load(device, cubin, entry, shared) -> (function, registers, bytes of local memory, most threads of a block)"},
    {"copy", driver_copy, METH_VARARGS, "copy(device, to, from, bytes, stream): from device memory to device memory"},
    {"version", driver_version, METH_NOARGS, "version() -> 12040 for CUDA 12.4"},
    {"attribute", driver_attribute, METH_VARARGS, "attribute(device, number) -> int: a CU_DEVICE_ATTRIBUTE"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject smelt_driver_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Driver",
    .tp_basicsize = sizeof(smelt_cuda_driver),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Driver(library): NVIDIA's driver",
    .tp_new = driver_new,
    .tp_dealloc = driver_dealloc,
    .tp_methods = driver_methods,
};

int smelt_cuda_add(PyObject *module) {
    cuda_error = PyErr_NewException("smelt.runtime._native.CudaError", PyExc_RuntimeError, NULL);
    if (!cuda_error || PyModule_AddObjectRef(module, "CudaError", cuda_error) < 0) return -1;
    return PyModule_AddType(module, &smelt_driver_type) < 0 || PyModule_AddType(module, &smelt_segment_type) < 0 ? -1 : 0;
}
