/* Keeps threads that end with the process from aborting it.
 *
 * While the process ends, CPython before 3.14 calls pthread_exit() in a thread that tries to enter the interpreter.
 * This unwinds the thread's stack. C++ frames that must not be unwound (destructors and `noexcept` functions, which
 * PyTorch has many of) then call std::terminate(), which would abort the process. Here std::terminate() ends only the
 * thread. The thread must not block for ever, as in 3.14, because a destructor (of a process group, for example) may
 * join it. */
#define _GNU_SOURCE
#include "native.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void (*Terminate)(void);

static Terminate before;
static void *(*current_exception_type)(void); /* returns NULL unless a C++ exception is active; unwinding is none */

static int interpreter_ends(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

static void end_thread_or_process(void) {
    if (interpreter_ends() && syscall(SYS_gettid) != getpid() && !current_exception_type())
        syscall(SYS_exit, 0); /* ends this thread without unwinding, so that threads that join it continue */
    before();
}

PyObject *end_threads_alone(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    void *library = before ? NULL : dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD); /* loaded by PyTorch */
    if (!library) Py_RETURN_FALSE;
    Terminate (*set_terminate)(Terminate) = (Terminate(*)(Terminate))dlsym(library, "_ZSt13set_terminatePFvvE");
    current_exception_type = (void *(*)(void))dlsym(library, "__cxa_current_exception_type");
    if (!set_terminate || !current_exception_type) Py_RETURN_FALSE;
    before = set_terminate(end_thread_or_process);
    Py_RETURN_TRUE;
}
