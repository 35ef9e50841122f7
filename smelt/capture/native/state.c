/* Compares the ambient modes of torch that change what an operator does: grad mode, autocast, default dtype, and so
 * on. Each mode has a reader: a C function without side effects in torch's libraries, which is called by its address,
 * or a Python function without arguments. Modes that set bits of libc10's thread-local dispatch key set (vmap and grad
 * transforms, dispatch modes, inference mode, autocast) are compared by that set. */
#include "native.h"
#include <dlfcn.h>

typedef struct {
    PyObject *name, *function;       /* strong */
    PyCFunction direct;              /* the C function of a builtin without arguments, else NULL */
    PyObject *receiver;              /* borrowed from function */
    int64_t (*native)(int64_t);      /* NULL: call `function` */
    int64_t argument;
    uint64_t mask; /* the significant bits of the C result */
} Reader;

enum { KEY_WORDS = 2 };
static Reader *readers;
static Py_ssize_t reader_count;
static const char *key_symbol = "_ZN3c104impl26raw_local_dispatch_key_setE";
static void *key_library;
static unsigned epoch; /* changes when readers are added or removed */
static _Thread_local const uint64_t *thread_keys;
static _Thread_local unsigned thread_epoch;

/* The two words of this thread's dispatch key set; NULL if their address is not known. */
static inline const uint64_t *dispatch_keys(void) {
    if (thread_epoch != epoch) {
        thread_keys = key_library ? dlsym(key_library, key_symbol) : NULL; /* glibc resolves for the calling thread */
        thread_epoch = epoch;
    }
    return thread_keys;
}

static inline PyObject *ask(const Reader *reader) {
    return reader->direct ? reader->direct(reader->receiver, NULL) : PyObject_CallNoArgs(reader->function);
}

static PyObject *read_now(const Reader *reader) {
    if (!reader->native) return ask(reader);
    return PyLong_FromLongLong(reader->native(reader->argument) & (int64_t)reader->mask);
}

static int reader_matches(const Reader *reader, PyObject *expected) {
    if (reader->native) {
        uint64_t now = (uint64_t)reader->native(reader->argument) & reader->mask;
        return PyLong_CheckExact(expected) && (uint64_t)PyLong_AsLongLong(expected) == now;
    }
    PyObject *now = ask(reader);
    int same = now == expected || (now && PyObject_RichCompareBool(now, expected, Py_EQ) == 1);
    Py_XDECREF(now);
    if (!same) PyErr_Clear();
    return same;
}

int state_matches(PyObject *expected) {
    const uint64_t *keys = dispatch_keys();
    if (PyTuple_GET_SIZE(expected) != reader_count + (keys ? 1 : 0)) return 0;
    PyObject *wanted = keys ? PyTuple_GET_ITEM(expected, reader_count) : NULL;
    if (keys && (!PyBytes_Check(wanted) || PyBytes_GET_SIZE(wanted) != KEY_WORDS * sizeof *keys)) return 0;
    if (keys && memcmp(PyBytes_AS_STRING(wanted), keys, KEY_WORDS * sizeof *keys)) return 0;
    for (Py_ssize_t i = 0; i < reader_count; i++)
        if (!reader_matches(&readers[i], PyTuple_GET_ITEM(expected, i))) return 0;
    return 1;
}

PyObject *state_now(PyObject *module, PyObject *unused) {
    const uint64_t *keys = dispatch_keys();
    PyObject *tuple = PyTuple_New(reader_count + (keys ? 1 : 0));
    for (Py_ssize_t i = 0; tuple && i < reader_count; i++) {
        PyObject *now = read_now(&readers[i]);
        if (now) PyTuple_SET_ITEM(tuple, i, now);
        else Py_CLEAR(tuple);
    }
    if (tuple && keys) {
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)keys, KEY_WORDS * sizeof *keys);
        if (bytes) PyTuple_SET_ITEM(tuple, reader_count, bytes);
        else Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *state_names(PyObject *module, PyObject *unused) {
    int keys = dispatch_keys() != NULL;
    PyObject *tuple = PyTuple_New(reader_count + keys);
    for (Py_ssize_t i = 0; tuple && i < reader_count; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(readers[i].name));
    if (tuple && keys) PyTuple_SET_ITEM(tuple, reader_count, PyUnicode_FromString("dispatch keys"));
    return tuple;
}

static int read_reader(PyObject *item, Reader *reader) {
    PyObject *name, *function;
    unsigned long long address;
    long long argument;
    int bytes;
    if (!PyArg_ParseTuple(item, "UOKLi;a reader is (name, function, address, argument, result bytes)", &name, &function,
                          &address, &argument, &bytes))
        return -1;
    if (!PyCallable_Check(function) || bytes < 0 || bytes > 8)
        return PyErr_Format(PyExc_ValueError, "bad reader %R", name), -1;
    *reader = (Reader){.name = Py_NewRef(name), .function = Py_NewRef(function), .argument = argument};
    reader->native = (int64_t(*)(int64_t))(uintptr_t)address;
    reader->mask = bytes == 8 ? ~0ull : (1ull << 8 * bytes) - 1;
    if (PyCFunction_CheckExact(function) && PyCFunction_GET_FLAGS(function) == METH_NOARGS) {
        reader->direct = PyCFunction_GET_FUNCTION(function);
        reader->receiver = PyCFunction_GET_SELF(function);
    }
    return 0;
}

static void free_readers(Reader *list, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(list[i].name);
        Py_DECREF(list[i].function);
    }
    PyMem_Free(list);
}

PyObject *set_state_readers(PyObject *module, PyObject *args) {
    PyObject *list;
    const char *library;
    if (!PyArg_ParseTuple(args, "O!z", &PyTuple_Type, &list, &library)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(list);
    Reader *made = PyMem_Calloc((size_t)count + 1, sizeof(Reader));
    if (!made) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_reader(PyTuple_GET_ITEM(list, i), &made[i]) < 0) {
            free_readers(made, i);
            return NULL;
        }
    Reader *old = readers;
    Py_ssize_t old_count = reader_count;
    readers = made;
    reader_count = count;
    key_library = library ? dlopen(library, RTLD_NOW | RTLD_NOLOAD) : NULL;
    epoch++;
    free_readers(old, old_count);
    return PyBool_FromLong(dispatch_keys() != NULL);
}
