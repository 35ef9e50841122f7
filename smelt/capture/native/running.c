/* Activates the evaluator for stacks of Python frames: `call` and Compiled activate it, Quiet and callbacks deactivate
 * it.
 *
 * The evaluator is installed only while some stack is active, because while it is, CPython does not inline
 * Python-to-Python calls in the whole process. */
#define _GNU_SOURCE
#include "native.h"
#include <pthread.h>
#include <structmember.h>

_Thread_local Thread thread;
static Py_ssize_t users; /* active stacks and pending injections */

void evaluator_acquire(void) {
    users++;
    /* at each activation: another evaluator may, when uninstalled, have restored the one that preceded it */
    evaluator_install();
}

void evaluator_release(void) {
    if (--users == 0) evaluator_uninstall();
}

/* -- stacks ------------------------------------------------------------------------------------- */
static PyObject *nothing; /* a Python function that does nothing */

static int is_idle(const Stack *stack) {
    return !stack->active && !stack->owner && !stack->injection && !stack->lender && !stack->continues &&
           !stack->original;
}

/* Saves the state of `thread.stack` and loads that of the stack with this root, to which the thread has switched. A
   stack outside of any `call` has no state to save; a stack inside of one lives, and so does its root, until the call
   ends. */
static void switch_to(void *root) {
    Stack *kept = is_idle(&thread.stack) ? NULL : malloc(sizeof(Stack));
    if (kept) {
        *kept = thread.stack;
        kept->next = thread.waiting;
        thread.waiting = kept;
    }
    for (Stack **at = &thread.waiting; *at; at = &(*at)->next) {
        if ((*at)->root != root) continue;
        Stack *found = *at;
        *at = found->next;
        thread.stack = *found;
        free(found);
        return;
    }
    memset(&thread.stack, 0, sizeof(Stack));
    thread.stack.root = root;
}

void change_stack(PyThreadState *state) {
    /* no Python function has run on this stack yet: running one allocates its first chunk */
    if (!state->datastack_chunk) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        Py_XDECREF(PyObject_CallNoArgs(nothing));
        PyErr_Restore(type, error, traceback);
    }
    _PyStackChunk *root = state->datastack_chunk;
    while (root && root->previous) root = root->previous;
    if (root != thread.stack.root) switch_to(root);
}

int running_ready(void) {
    PyObject *globals = PyDict_New();
    nothing = globals ? PyRun_String("lambda: None", Py_eval_input, globals, globals) : NULL;
    Py_XDECREF(globals);
    return nothing ? 0 : -1;
}

int set_active(int active) {
    Stack *stack = stack_now();
    int was = stack->active;
    if (was != active) {
        stack->active = active;
        if (active) evaluator_acquire();
        else evaluator_release();
    }
    return was;
}

/* -- the C stack ------------------------------------------------------------------------------- */
static char *find_middle(void) {
    char *middle = (char *)1; /* on other systems the stack is never found short */
#ifdef __linux__
    pthread_attr_t attributes;
    void *low;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attributes)) return middle;
    if (!pthread_attr_getstack(&attributes, &low, &size)) middle = (char *)low + size / 2;
    pthread_attr_destroy(&attributes);
#elif defined(__APPLE__)
    middle = (char *)pthread_get_stackaddr_np(pthread_self()) - pthread_get_stacksize_np(pthread_self()) / 2;
#endif
    return middle;
}

#if defined(Py_C_RECURSION_LIMIT)
#define C_CALLS Py_C_RECURSION_LIMIT
#elif defined(C_RECURSION_LIMIT)
#define C_CALLS C_RECURSION_LIMIT
#endif

int stack_is_short(PyThreadState *state) {
    if (!thread.middle) thread.middle = find_middle();
#ifdef C_CALLS
    if (state->c_recursion_remaining < C_CALLS / 2) return 1;
#endif
    return (char *)__builtin_frame_address(0) < thread.middle;
}

/* -- call, uncaptured_call -------------------------------------------------------------------------- */
static PyObject *call(PyObject *module, PyObject *args, PyObject *keywords) {
    static char *names[] = {"fn", "args", "kwargs", "owner", NULL};
    PyObject *fn, *positional = NULL, *named = Py_None, *owner = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O!OO", names, &fn, &PyTuple_Type, &positional, &named, &owner))
        return NULL;
    if (named != Py_None && !PyDict_Check(named))
        return PyErr_Format(PyExc_TypeError, "kwargs must be a dict or None, not %s", Py_TYPE(named)->tp_name);
    PyObject *other = other_pauses();
    if (!other) return NULL;
    PyObject *empty = positional ? Py_NewRef(positional) : PyTuple_New(0);
    if (!empty) {
        other_continues(other);
        return NULL;
    }
    int was = set_active(!thread.eager);
    PyObject *outer = thread.stack.owner;
    int tracing = thread.stack.tracing;
    thread.stack.owner = owner; /* alive: the caller holds the arguments */
    thread.stack.tracing = PyThreadState_Get()->tracing;
    PyObject *result = PyObject_Call(fn, empty, named == Py_None ? NULL : named);
    set_active(was);
    thread.stack.owner = outer;
    thread.stack.tracing = tracing;
    Py_DECREF(empty);
    other_continues(other);
    return result;
}

static PyObject *uncaptured_call(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "uncaptured_call() needs a function");
    int was = set_active(0);
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    set_active(was);
    return result;
}

static PyObject *lend(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !PyTuple_Check(args[2]) || !PyDict_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "lend(callback or None, fn, args, kwargs)");
    PyObject *outer = stack_now()->lender, *lender = args[0] == Py_None ? NULL : args[0];
    thread.stack.lender = lender; /* alive: the caller holds the arguments */
    if (lender) evaluator_acquire();
    PyObject *result = PyObject_Call(args[1], args[2], args[3]);
    if (lender) evaluator_release();
    stack_now()->lender = outer;
    return result;
}

static PyObject *is_active(PyObject *module, PyObject *unused) { return PyBool_FromLong(stack_now()->active); }

static PyObject *owner(PyObject *module, PyObject *unused) {
    PyObject *owner = stack_now()->owner;
    return Py_NewRef(owner ? owner : Py_None);
}

static PyObject *set_eager(PyObject *module, PyObject *on) {
    int eager = PyObject_IsTrue(on);
    if (eager < 0) return NULL;
    thread.eager = eager;
    if (eager) set_active(0); /* takes effect in a running call as well */
    Py_RETURN_NONE;
}

PyMethodDef running_methods[] = {
    {"call", METHOD(call), METH_VARARGS | METH_KEYWORDS,
     "call(fn, args=(), kwargs=None, owner=None): run fn with the hook active"},
    {"uncaptured_call", METHOD(uncaptured_call), METH_FASTCALL | METH_KEYWORDS,
     "uncaptured_call(fn, *args, **kwargs): run fn with the hook inactive for this thread"},
    {"lend", METHOD(lend), METH_FASTCALL,
     "lend(callback or None, fn, args, kwargs): fn(*args, **kwargs); callback gives the results of Python functions that C code calls in it"},
    {"is_active", is_active, METH_NOARGS, "whether the hook acts on frames that this thread starts now"},
    {"owner", owner, METH_NOARGS, "the owner of the innermost call, None without one"},
    {"set_eager", set_eager, METH_O, "set_eager(on): `call` in this thread runs functions uncompiled"},
    {NULL, NULL, 0, NULL},
};

/* -- Compiled, Quiet: the same as callable objects --------------------------------------------- */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *fn, *dict, *weakrefs;
} Wrapper;

static inline PyObject *run(PyObject *self, PyObject *const *args, size_t flags, PyObject *names, int active) {
    PyObject *fn = ((Wrapper *)self)->fn;
    if (!fn) return PyErr_Format(PyExc_ReferenceError, "called after the garbage collector cleared it");
    int was = set_active(active), tracing = thread.stack.tracing;
    if (active) thread.stack.tracing = PyThreadState_Get()->tracing;
    PyObject *result = PyObject_Vectorcall(fn, args, flags, names);
    set_active(was);
    thread.stack.tracing = tracing;
    return result;
}

static PyObject *run_active(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    return run(self, args, flags, names, !thread.eager);
}

static PyObject *run_quiet(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    return run(self, args, flags, names, 0);
}

static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"fn", NULL};
    PyObject *fn;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O", names, &fn)) return NULL;
    if (!PyCallable_Check(fn)) return PyErr_Format(PyExc_TypeError, "%s is not callable", Py_TYPE(fn)->tp_name);
    Wrapper *self = (Wrapper *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->fn = Py_NewRef(fn);
    self->vectorcall = type == &CompiledType ? run_active : run_quiet;
    return (PyObject *)self;
}

static int wrapper_traverse(Wrapper *self, visitproc visit, void *arg) {
    Py_VISIT(self->fn);
    Py_VISIT(self->dict);
    return 0;
}

static int wrapper_clear(Wrapper *self) {
    Py_CLEAR(self->fn);
    Py_CLEAR(self->dict);
    return 0;
}

static void wrapper_dealloc(Wrapper *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->dict);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *wrapper_bind(PyObject *self, PyObject *instance, PyObject *owner) {
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

static PyObject *wrapper_repr(Wrapper *self) {
    return PyUnicode_FromFormat("%s(%R)", strrchr(Py_TYPE(self)->tp_name, '.') + 1, self->fn);
}

static PyObject *wrapper_reduce(Wrapper *self, PyObject *unused) {
    return Py_BuildValue("O(O)O", Py_TYPE(self), self->fn, self->dict ? self->dict : Py_None);
}

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", (PyCFunction)wrapper_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef wrapper_members[] = {
    {"fn", T_OBJECT_EX, offsetof(Wrapper, fn), READONLY, "the wrapped function"},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define WRAPPER_FLAGS                                                                                                  \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR)
#define WRAPPER_TYPE(NAME, DOC)                                                                                        \
    {                                                                                                                  \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native." NAME, .tp_doc = DOC,                         \
        .tp_basicsize = sizeof(Wrapper), .tp_new = wrapper_new, .tp_dealloc = (destructor)wrapper_dealloc,             \
        .tp_flags = WRAPPER_FLAGS,                                                                                     \
        .tp_vectorcall_offset = offsetof(Wrapper, vectorcall), .tp_call = PyVectorcall_Call,                           \
        .tp_dictoffset = offsetof(Wrapper, dict), .tp_weaklistoffset = offsetof(Wrapper, weakrefs),                    \
        .tp_traverse = (traverseproc)wrapper_traverse, .tp_clear = (inquiry)wrapper_clear,                             \
        .tp_descr_get = wrapper_bind, .tp_repr = (reprfunc)wrapper_repr, .tp_methods = wrapper_methods,                \
        .tp_members = wrapper_members, .tp_getset = wrapper_getset,                                                    \
    }

PyTypeObject CompiledType = WRAPPER_TYPE("Compiled", "Compiled(fn): calls fn with the hook active for this thread");
PyTypeObject QuietType = WRAPPER_TYPE("Quiet", "Quiet(fn): calls fn with the hook inactive for this thread");
