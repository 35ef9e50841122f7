/* CPython (before 3.14) ends a thread that wants the interpreter while the process ends: pthread_exit() unwinds it, and
 * C++ that may not be unwound (destructors, `noexcept`, of which PyTorch is full) calls std::terminate(), which would
 * abort the process. Here only the thread ends. It does not wait for ever instead, as in 3.14: a destructor may wait
 * for it, as that of a process group does. */
#define _GNU_SOURCE
#include "native.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void (*Terminate)(void);

static Terminate before;
static void *(*current_exception_type)(void); /* NULL: of none, or of what is no exception of C++, as an unwinding is */

static int interpreter_ends(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

static void end_thread_or_process(void) {
    if (interpreter_ends() && syscall(SYS_gettid) != getpid() && !current_exception_type())
        syscall(SYS_exit, 0); /* this thread, without more unwinding; whoever joins it goes on */
    before();
}

PyObject *end_threads_alone(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    void *library = before ? NULL : dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD); /* PyTorch's, if it has one */
    if (!library) Py_RETURN_FALSE;
    Terminate (*set_terminate)(Terminate) = (Terminate(*)(Terminate))dlsym(library, "_ZSt13set_terminatePFvvE");
    current_exception_type = (void *(*)(void))dlsym(library, "__cxa_current_exception_type");
    if (!set_terminate || !current_exception_type) Py_RETURN_FALSE;
    before = set_terminate(end_thread_or_process);
    Py_RETURN_TRUE;
}
