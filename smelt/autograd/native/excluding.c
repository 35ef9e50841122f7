/* Excluding(program, keys, boxed): calls a program while some dispatch keys of torch are excluded in this thread.
 *
 * torch's guards are Python objects; creating, entering and leaving one takes as long as a small kernel. They set bits
 * in a thread-local word. autograd/call/dispatch.py has found that word and compared writes to it with the guards. */
#define PY_SSIZE_T_CLEAN
#include "excluding.h"
#include <dlfcn.h>
#include <stdint.h>
#include <structmember.h>

enum { INCLUDED, EXCLUDED }; /* indices of the thread-local words */

static const char *const symbol = "_ZN3c104impl26raw_local_dispatch_key_setE";
static void *library;
static uint64_t usual; /* the default set: torch stores the exclusive or of a set with it */
static unsigned epoch = 1; /* changes when `library` changes */
static _Thread_local uint64_t *thread_words;
static _Thread_local unsigned thread_epoch;

/* This thread's words; NULL if their address is unknown. */
static inline uint64_t *words(void) {
    if (thread_epoch != epoch) {
        thread_words = library ? dlsym(library, symbol) : NULL; /* glibc returns the calling thread's copy */
        thread_epoch = epoch;
    }
    return thread_words;
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *program, *weakrefs;
    uint64_t keys;
    char boxed;
} Excluding;

/* Calls the program with its inputs in a new list, which the program empties. */
static PyObject *run_flat(PyObject *program, PyObject *const *args, Py_ssize_t count) {
    PyObject *inputs = PyList_New(count);
    if (!inputs) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) PyList_SET_ITEM(inputs, i, Py_NewRef(args[i]));
    PyObject *results = PyObject_CallOneArg(program, inputs);
    Py_DECREF(inputs);
    if (!results || PyTuple_CheckExact(results)) return results;
    PyObject *tuple = PySequence_Tuple(results);
    Py_DECREF(results);
    return tuple;
}

static PyObject *excluding_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    const Excluding *kind = (const Excluding *)self;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    PyObject *program = kind->program;
    uint64_t *at = words(), added;
    if (!program) return PyErr_Format(PyExc_ReferenceError, "called after the garbage collector cleared it");
    if (!at) return PyErr_Format(PyExc_RuntimeError, "set_dispatch_words was not called");
    if (names || (kind->boxed && count != 1))
        return PyErr_Format(PyExc_TypeError, kind->boxed ? "one list is wanted" : "no keywords are taken");
    added = kind->keys & ~(at[EXCLUDED] ^ usual);
    at[EXCLUDED] = ((at[EXCLUDED] ^ usual) | added) ^ usual;
    Py_INCREF(program); /* the program may drop the last reference to `self` */
    PyObject *result = kind->boxed ? PyObject_CallOneArg(program, args[0]) : run_flat(program, args, count);
    Py_DECREF(program);
    at = words();
    at[EXCLUDED] = ((at[EXCLUDED] ^ usual) & ~added) ^ usual;
    return result;
}

static PyObject *excluding_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"program", "keys", "boxed", NULL};
    PyObject *program;
    unsigned long long keys;
    int boxed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OKp", names, &program, &keys, &boxed)) return NULL;
    if (!PyCallable_Check(program))
        return PyErr_Format(PyExc_TypeError, "%s is not callable", Py_TYPE(program)->tp_name);
    Excluding *self = (Excluding *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->call = excluding_call;
    self->program = Py_NewRef(program);
    self->keys = keys;
    self->boxed = (char)boxed;
    return (PyObject *)self;
}

static int excluding_traverse(Excluding *self, visitproc visit, void *arg) {
    Py_VISIT(self->program);
    return 0;
}

static int excluding_clear(Excluding *self) {
    Py_CLEAR(self->program);
    return 0;
}

static void excluding_dealloc(Excluding *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->program);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef excluding_members[] = {
    {"program", T_OBJECT_EX, offsetof(Excluding, program), READONLY, "what is called"},
    {"keys", T_ULONGLONG, offsetof(Excluding, keys), READONLY, "the dispatch keys that are passed by"},
    {NULL, 0, 0, 0, NULL},
};
PyTypeObject ExcludingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.autograd._native.Excluding",
    .tp_doc = "Excluding(program, keys, boxed): calls the program with dispatch keys excluded. Boxed: with the one list "
              "that it is given; else with its arguments as a list, and gives what comes as a tuple",
    .tp_basicsize = sizeof(Excluding),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = excluding_new,
    .tp_dealloc = (destructor)excluding_dealloc,
    .tp_traverse = (traverseproc)excluding_traverse,
    .tp_clear = (inquiry)excluding_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Excluding, call),
    .tp_members = excluding_members,
    .tp_weaklistoffset = offsetof(Excluding, weakrefs),
};

static PyObject *set_dispatch_words(PyObject *module, PyObject *args) {
    (void)module;
    const char *path;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "zK", &path, &number)) return NULL;
    library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    usual = number;
    epoch++;
    return PyBool_FromLong(words() != NULL);
}

static PyObject *dispatch_words(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    const uint64_t *at = words();
    if (!at) Py_RETURN_NONE;
    return Py_BuildValue("(KK)", (unsigned long long)at[INCLUDED], (unsigned long long)at[EXCLUDED]);
}

PyMethodDef excluding_methods[] = {
    {"set_dispatch_words", set_dispatch_words, METH_VARARGS,
     "set_dispatch_words(path of libc10 or None, usual excluded keys) -> bool: whether the words were found"},
    {"dispatch_words", dispatch_words, METH_NOARGS, "dispatch_words() -> (included, excluded) as stored, or None"},
    {NULL, NULL, 0, NULL},
};
