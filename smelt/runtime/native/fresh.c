/* Fresh(shape, stride, code, bits): makes uninitialised CPU tensors of one kind. Small ones are left to torch.
 *
 * A large tensor is a block of the heap, wrapped by DLPack's C exchange table, which torch publishes as
 * `torch.Tensor.__dlpack_c_exchange_api__`. Its deleter returns the block. It is called, on any thread, when the last
 * reference to the storage is released. */
#include "fresh.h"
#include "../../base/native/dlpack.h"
#include "heap.h"
#include "tensor.h"
#include <string.h>

enum { HEADER = 512 }; /* bytes before the data, for the description */
typedef struct {
    Managed managed;
    int64_t dims[2 * MAX_RANK];
} Head;
_Static_assert(sizeof(Head) <= HEADER, "header");

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    int rank;
    Type type;
    size_t bytes;
    PyObject *otherwise; /* makes the tensor if the heap has no room for it */
    int64_t dims[2 * MAX_RANK]; /* shape, then strides */
} Fresh;

static const Exchange *exchange;

/* The fields that make an exchanged storage resizable, like a storage of torch's own allocator: the allocator of new
 * memory, at a word of the storage, and a flag, at a byte of it. After a resize, the deleter returns the old memory to
 * the heap, as always. The positions are not known while `allocator` is 0. */
static struct {
    int word, byte;
    uint64_t allocator;
} resizable;

static void make_resizable(PyObject *tensor) {
    void *storage = (void *)(uintptr_t)smelt_tensor_storage(tensor);
    if (!storage || !resizable.allocator) return;
    ((uint64_t *)storage)[resizable.word] = resizable.allocator;
    ((unsigned char *)storage)[resizable.byte] = 1;
}

const Exchange *smelt_exchange(void) { return exchange; }

static void give_back(Managed *managed) { smelt_heap_give(managed); }

/* Makes a tensor of a block of the heap, which contains the description and then the data. */
static PyObject *tensor_of(char *block, int rank, const int64_t *shape, const int64_t *strides, Type type) {
    Head *head = (Head *)block;
    memcpy(head->dims, shape, (size_t)rank * sizeof(int64_t));
    memcpy(head->dims + rank, strides, (size_t)rank * sizeof(int64_t));
    head->managed = (Managed){
        exchange->version, NULL, give_back, 0,
        {block + HEADER, {1, 0}, rank, type, head->dims, head->dims + rank, 0},
    };
    void *tensor = NULL;
    if (exchange->to_python(&head->managed, &tensor)) {
        smelt_heap_give(block);
        return NULL;
    }
    make_resizable(tensor);
    return tensor;
}

static PyObject *fresh_vectorcall(PyObject *self, PyObject *const *args, size_t flags, PyObject *keywords) {
    const Fresh *kind = (const Fresh *)self;
    if (PyVectorcall_NARGS(flags) || keywords) {
        PyErr_SetString(PyExc_TypeError, "Fresh takes no arguments");
        return NULL;
    }
    char *block = smelt_heap_take(kind->bytes + HEADER);
    if (!block) { /* no memory, or other mappings at the addresses for the heap: torch's allocator decides */
        smelt_heap_trim();
        return PyObject_CallNoArgs(kind->otherwise);
    }
    return tensor_of(block, kind->rank, kind->dims, kind->dims + kind->rank, kind->type);
}

PyObject *smelt_fresh_tensor(int rank, const int64_t *shape, const int64_t *strides, Type type, void **data) {
    size_t bytes = type.bits / 8;
    for (int d = 0; d < rank; d++) bytes *= (size_t)shape[d];
    char *block = smelt_heap_take(bytes + HEADER);
    if (!block) return NULL;
    *data = block + HEADER;
    return tensor_of(block, rank, shape, strides, type);
}

static int read_tuple(PyObject *tuple, int64_t *to, Py_ssize_t rank) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != rank) {
        PyErr_SetString(PyExc_ValueError, "shape and stride must be tuples of one length");
        return 0;
    }
    for (Py_ssize_t i = 0; i < rank; i++) to[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return !PyErr_Occurred();
}

static PyObject *fresh_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *shape, *stride, *otherwise;
    int code, bits;
    if (!PyArg_ParseTuple(args, "OOiiO", &shape, &stride, &code, &bits, &otherwise)) return NULL;
    if (!exchange) {
        PyErr_SetString(PyExc_RuntimeError, "fresh_init was not called");
        return NULL;
    }
    const Py_ssize_t rank = PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : -1;
    if (rank < 0 || rank > MAX_RANK) return PyErr_Format(PyExc_ValueError, "a shape of at most %d sizes", MAX_RANK);
    Fresh *kind = (Fresh *)type->tp_alloc(type, 0);
    if (!kind) return NULL;
    kind->call = fresh_vectorcall;
    kind->otherwise = Py_NewRef(otherwise);
    kind->rank = (int)rank;
    kind->type = (Type){(uint8_t)code, (uint8_t)bits, 1};
    if (!read_tuple(shape, kind->dims, rank) || !read_tuple(stride, kind->dims + rank, rank)) {
        Py_DECREF(kind);
        return NULL;
    }
    int64_t last = 1;
    for (Py_ssize_t i = 0; i < rank; i++) last += (kind->dims[i] - 1) * kind->dims[rank + i];
    for (Py_ssize_t i = 0; i < rank; i++)
        if (kind->dims[i] == 0) last = 0;
    kind->bytes = (size_t)last * ((size_t)bits / 8);
    return (PyObject *)kind;
}

static void fresh_dealloc(Fresh *kind) {
    Py_XDECREF(kind->otherwise);
    Py_TYPE(kind)->tp_free((PyObject *)kind);
}

PyTypeObject smelt_fresh_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Fresh",
    .tp_basicsize = sizeof(Fresh),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Fresh(shape, stride, dlpack_code, bits, otherwise): call it for an uninitialised CPU tensor on the recycling "
              "heap, or what otherwise() gives where that has no room",
    .tp_new = fresh_new,
    .tp_dealloc = (destructor)fresh_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Fresh, call),
};

static PyObject *fresh_init(PyObject *module, PyObject *tensor_type) {
    const Exchange *table = smelt_exchange_of(tensor_type);
    exchange = table && table->to_python ? table : NULL;
    return PyBool_FromLong(exchange != NULL);
}

static PyObject *fresh_resizable(PyObject *module, PyObject *args) {
    unsigned long long allocator;
    int word, byte;
    if (!PyArg_ParseTuple(args, "iiK", &word, &byte, &allocator)) return NULL;
    resizable.word = word;
    resizable.byte = byte;
    resizable.allocator = allocator;
    Py_RETURN_NONE;
}

static PyObject *heap_trim(PyObject *module, PyObject *unused) {
    Py_BEGIN_ALLOW_THREADS
    smelt_heap_trim();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *heap_report(PyObject *module, PyObject *unused) {
    const smelt_heap_state s = smelt_heap_report();
    return Py_BuildValue("{s:n,s:n,s:n,s:n}", "live", (Py_ssize_t)s.live, "peak", (Py_ssize_t)s.peak, "resident",
                         (Py_ssize_t)s.resident, "trims", (Py_ssize_t)s.trims);
}

PyMethodDef smelt_fresh_methods[] = {
    {"fresh_init", fresh_init, METH_O, "fresh_init(torch.Tensor) -> bool: whether torch offers the exchange table"},
    {"fresh_resizable", fresh_resizable, METH_VARARGS,
     "fresh_resizable(word, byte, allocator): what tells torch that a storage can be resized; allocator 0: nothing"},
    {"heap_trim", heap_trim, METH_NOARGS, "heap_trim(): give the pages of free blocks back to the system"},
    {"heap_report", heap_report, METH_NOARGS, "heap_report() -> bytes live, peak and resident, and the number of trims"},
    {NULL, NULL, 0, NULL},
};
