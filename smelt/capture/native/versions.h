/* CPython's internal frame by the same names on 3.11, 3.12 and 3.13. Included by frame.c and generators.c. */
#ifndef SMELT_CAPTURE_VERSIONS_H
#define SMELT_CAPTURE_VERSIONS_H

#define Py_BUILD_CORE 1
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030c0000
#undef _PyGC_FINALIZED /* a macro for packages, a function inside CPython */
#include <internal/pycore_interp.h>
#include <internal/pycore_instruments.h>
#endif
#undef Py_BUILD_CORE

typedef struct _PyInterpreterFrame Frame;

#if PY_VERSION_HEX >= 0x030d0000
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define FRAME_SET_CODE(f, c) ((f)->f_executable = (PyObject *)(c))
#define FRAME_FUNC(f) ((f)->f_funcobj)
#define FRAME_NEXT(f) ((f)->instr_ptr) /* the instruction that runs next */
#define FRAME_SET_NEXT(f, i) ((f)->instr_ptr = (i))
#define CURRENT_FRAME(state) ((state)->current_frame)
#elif PY_VERSION_HEX >= 0x030c0000
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_SET_CODE(f, c) ((f)->f_code = (PyCodeObject *)(c))
#define FRAME_FUNC(f) ((f)->f_funcobj)
#define FRAME_NEXT(f) ((f)->prev_instr + 1)
#define FRAME_SET_NEXT(f, i) ((f)->prev_instr = (i) - 1)
#define CURRENT_FRAME(state) ((state)->cframe->current_frame)
#else
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_SET_CODE(f, c) ((f)->f_code = (PyCodeObject *)(c))
#define FRAME_FUNC(f) ((PyObject *)(f)->f_func)
#define FRAME_NEXT(f) ((f)->prev_instr + 1)
#define FRAME_SET_NEXT(f, i) ((f)->prev_instr = (i) - 1)
#define CURRENT_FRAME(state) ((state)->cframe->current_frame)
#endif

/* Whether a debugger or a coverage tool follows the lines of this thread: sys.settrace, or sys.monitoring's tools for
   these two. Profilers only need calls. */
static inline int lines_are_watched(PyThreadState *state) {
    if (state->c_tracefunc) return 1;
#if PY_VERSION_HEX >= 0x030c0000
    const uint8_t *tools = state->interp->monitors.tools;
    return (tools[PY_MONITORING_EVENT_PY_START] | tools[PY_MONITORING_EVENT_LINE]) & 3; /* DEBUGGER_ID, COVERAGE_ID */
#else
    return 0;
#endif
}

/* Number of words of the data stack for a frame of `code`. */
static inline int frame_words(PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030c0000
    return code->co_framesize;
#else
    return (int)(code->co_nlocalsplus + code->co_stacksize + FRAME_SPECIALS_SIZE);
#endif
}

static inline void grow_frame_words(PyCodeObject *code, int words) {
    code->co_stacksize += words;
#if PY_VERSION_HEX >= 0x030c0000
    code->co_framesize += words;
#endif
}

#endif
