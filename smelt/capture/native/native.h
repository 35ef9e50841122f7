/* smelt.capture._native: declarations shared by its files.
 *   frame.c       PEP 523 evaluator: swaps replacements into frames, injects resumed frames
 *   running.c     where the evaluator acts: call, Compiled, Quiet
 *   handled.c     the exception being handled, as the program sees it
 *   entries.c     cache entries per compile site (a code object or a resume point)
 *   points.c      resume points
 *   generators.c  suspended generators;  iterators.c  positions of iterators over dicts and sets
 *   finalizers.c  whether code of the program runs when an object dies
 *   tensor.c      TensorSpec: tensor metadata through calibrated reads
 *   state.c       ambient modes of torch
 *   variants.c    the Variants type: versions of a function by the kinds of its inputs, outside of frames
 *   module.c      the module's table
 *   guards/       guards.c    the Guards type;  steps.c, program.c  its compiled forms
 *                 evaluate.c  their evaluation, with reads.h, dicts.h (fetches), checks.h, checks.c and memos.h (earlier reads)
 *                 shortcuts.c, sizes.c  native evaluation of some checks that are Python functions
 * Everything runs under the GIL. Nothing here links torch. */
#ifndef SMELT_CAPTURE_NATIVE_H
#define SMELT_CAPTURE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030e0000
#error "smelt.capture._native knows the frames of CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "smelt.capture._native needs the GIL"
#endif

#define METHOD(f) ((PyCFunction)(void (*)(void))(f))

extern PyObject *smelt_null; /* the NULL sentinel of the API */

/* -- what guards read: a frame about to run, or a resume point with its values ------------------ */
typedef struct {
    PyObject *const *slots; /* an unset slot is NULL or smelt_null */
    Py_ssize_t count;
    PyObject *globals, *builtins;
    PyObject *func; /* the frame's function, or NULL */
} Scope;

PyObject *scope_builtins(PyObject *globals, PyObject *func); /* borrowed */

/* -- guards.c ---------------------------------------------------------------------------------- */
enum Outcome { MISS = 0, HIT = 1, RAISED = -1, DEAD = -2 }; /* DEAD: can never hit again */

typedef struct {
    int is_check;
    Py_ssize_t index;
    PyObject *value; /* strong */
} Failure;

extern PyTypeObject GuardsType;
enum Outcome guards_evaluate(PyObject *guards, const Scope *scope, PyObject **outputs);
enum Outcome guards_explain(PyObject *guards, const Scope *scope, Failure *failure); /* finds the guard that fails */
int guards_ready(PyObject *module);
PyObject *set_equality(PyObject *module, PyObject *function);
PyObject *is_slot_method(PyObject *module, PyObject *object);
PyObject *takes_all_method(PyObject *module, PyObject *object);
PyObject *instance_dict_method(PyObject *module, PyObject *object);
PyObject *name_in_c(PyObject *module, PyObject *type);
Py_ssize_t guards_slot_bound(PyObject *guards); /* 1 + highest slot that a LOCAL fetch reads */

/* -- variants.c -------------------------------------------------------------------------------- */
extern PyTypeObject VariantsType;

/* -- tensor.c ---------------------------------------------------------------------------------- */
extern PyTypeObject TensorSpecType;
int tensor_spec_matches(PyObject *spec, PyObject *value); /* never leaves an exception */
int tensor_spec_is_raw(PyObject *spec); /* matching reads memory and runs no Python code */
PyObject *tensor_size(PyObject *tensor, Py_ssize_t dim, int raw); /* new int; NULL: fails */
PyObject *set_tensor_layout(PyObject *module, PyObject *args);

/* -- state.c ----------------------------------------------------------------------------------- */
int state_matches(PyObject *expected); /* never leaves an exception */
PyObject *state_now(PyObject *module, PyObject *unused);
PyObject *state_names(PyObject *module, PyObject *unused);
PyObject *set_state_readers(PyObject *module, PyObject *args);

/* -- entries.c --------------------------------------------------------------------------------- */
typedef struct CompileSite CompileSite;

typedef struct {
    PyObject_HEAD
    CompileSite *site; /* borrowed; NULL after the removal */
    PyObject *guards, *constants;
    PyCodeObject *replacement;
    PyObject *owner;    /* only calls of this owner may use the entry; NULL: all calls */
    int borrowed;       /* whether its site has no strong reference to it, since the owner has */
    PyObject *function; /* the replacement as a function, made when it is called in place of swapped */
    unsigned long long hits;
    PyObject *weakrefs;
} CacheEntry;

/* Whether frames of a site run uncompiled. SKIPPED: until `clear`. The other kinds are permanent. PINNED: code of smelt
   itself. QUIET: frames below them run uncompiled as well. NEVER: code excluded by its file or kind. */
enum { NOT_SKIPPED = 0, SKIPPED = 1, PINNED = 2, QUIET = 3, NEVER = 4 };

struct CompileSite {
    CacheEntry **entries;
    Py_ssize_t count, room;
    unsigned long generation; /* changes with the list of entries, which Python code of guards may change */
    Py_ssize_t arity;         /* number of a replacement's parameters before _c and _f */
    int skipped;
    int unlent;         /* whether the code runs uncompiled if C code calls it inside of `lend` */
    PyCodeObject *code; /* borrowed; NULL for resume points */
    CompileSite *previous, *next;
};

typedef struct {
    PyObject_HEAD
    CompileSite site;
    PyCodeObject *code, *injected; /* injected: the copy without arguments of which frames are made */
    PyObject *function;            /* of `injected`, cached for one globals dict */
    int offset;
    Py_ssize_t depth;
    PyObject *weakrefs;
} ResumePoint;

extern PyTypeObject CacheEntryType, ResumePointType;
int entries_ready(void);
void site_link(CompileSite *site);
void site_unlink(CompileSite *site);
void site_clear(CompileSite *site);
CompileSite *site_find(PyObject *code);
CompileSite *site_make(PyCodeObject *code);
enum Outcome site_lookup(CompileSite *site, const Scope *scope, CacheEntry **entry, PyObject **outputs);
PyObject *entry_function(CacheEntry *entry, PyObject *globals); /* borrowed */
Py_ssize_t argument_slots(PyCodeObject *code);
extern PyMethodDef entries_methods[];

/* -- running.c --------------------------------------------------------------------------------- */
typedef struct Injection Injection;

/* The state of one stack of Python frames. A thread has one, or one for each greenlet, of which it runs one at a time. */
typedef struct Stack Stack;
struct Stack {
    int active;           /* whether the hook acts on frames that this stack starts */
    /* `state->tracing` at the beginning of the innermost call: number of running hooks (traces, profiles, audits) */
    int tracing;
    PyObject *owner;      /* owner passed to the innermost `call`; borrowed from it */
    Injection *injection; /* the frame that a continuation is about to start */
    /* the callback of `lend`, which gives the results of frames that start now; borrowed from its caller */
    PyObject *lender;
    PyObject *continues;  /* object of the frame that ended with the running continuation, or NULL; borrowed */
    PyCodeObject *original; /* the code whose frame the continuation resumes; borrowed */
    /* identifies the stack: the first chunk of its data stack, which lives as long as the stack */
    void *root;
    Stack *next;            /* next suspended stack of this thread with state to restore */
};

typedef struct {
    Stack stack;    /* state of the stack that ran last */
    Stack *waiting; /* owned */
    int eager;      /* `call` leaves the hook inactive */
    char *middle;   /* middle of the C stack, which grows down; NULL: not determined yet */
} Thread;

extern _Thread_local Thread thread;
void change_stack(PyThreadState *state);

/* The state of the running stack. Call this function once more after code that may have run Python, which may have
   switched to another greenlet and back. */
static inline Stack *stack_of(PyThreadState *state) {
    /* chunk addresses are reused, so only a root is compared with a root */
    _PyStackChunk *chunk = state->datastack_chunk;
    if (!chunk || chunk->previous || chunk != thread.stack.root) change_stack(state);
    return &thread.stack;
}
static inline Stack *stack_now(void) { return stack_of(PyThreadState_Get()); }

int set_active(int active);   /* installs the evaluator with the first active stack; returns the previous value */
void evaluator_acquire(void); /* keep the evaluator installed ... */
void evaluator_release(void); /* ... until here */
int stack_is_short(PyThreadState *state); /* whether half of the C stack is used */
extern PyTypeObject CompiledType, QuietType;
int running_ready(void);
extern PyMethodDef running_methods[];

/* -- handled.c --------------------------------------------------------------------------------- */
PyObject *handled_swap(PyObject *error);
PyObject *handled_now(void);
void handled_restore(PyObject *error);
extern PyMethodDef handled_methods[];

/* -- finalizers.c ------------------------------------------------------------------------------ */
int finalizes(PyObject *value);
extern PyMethodDef finalizers_methods[];

/* -- frame.c ----------------------------------------------------------------------------------- */
void evaluator_install(void);
void evaluator_uninstall(void);
PyObject *other_pauses(void); /* disables another compiler's callback for this thread ... */
void other_continues(PyObject *callback); /* ... until here */
PyCodeObject *code_without_arguments(PyCodeObject *code);
extern PyMethodDef generators_methods[];
extern PyMethodDef iterators_methods[];
int iterators_ready(void);
int frame_ready(void);
void frame_reserve(PyCodeObject *original, PyCodeObject *replacement);
int slots_are_cells(PyCodeObject *code, PyObject *slots);
extern PyMethodDef frame_methods[];

#endif
