/* The work of a replay for each input and output; see smelt/runtime/cuda/recording.py.
 *
 * Addresses: the addresses of the inputs at recording time, compared in one call with those of new inputs.
 *
 * Memory: the outputs of a recording are in memory that each replay overwrites. Each replay returns them as new tensor
 * objects, which are made by DLPack's exchange table. When the last reference to a storage is released, on any thread,
 * its deleter marks the output as unused. So the recording knows at any time which outputs are alive. The block of
 * these marks, and the owner of the memory, live until the recording and all outputs are freed. */
#include "recorded.h"
#include "fresh.h"
#include "tensor.h"
#include <stdatomic.h>
#include <string.h>
#include <structmember.h>

/* -- addresses ------------------------------------------------------------------------------------------------ */

enum { LOOK_AHEAD = 16 }; /* distance of prefetching, in inputs: few storages are in the caches after a step */

typedef struct {
    PyObject *number; /* the value that an input which is not a tensor must have */
    char *data; /* the address that a tensor must have */
    int moves; /* whether the tensor may be at any address */
} ExpectedInput;
typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    ExpectedInput *expected;
} Addresses;

static int is_number(PyObject *input) {
    return input == Py_None || PyBool_Check(input) || PyLong_CheckExact(input) || PyFloat_CheckExact(input);
}

static void addresses_dealloc(Addresses *self) {
    for (Py_ssize_t i = 0; i < self->count; i++) Py_XDECREF(self->expected[i].number);
    PyMem_Free(self->expected);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int read_expected(ExpectedInput *expected, PyObject *input, PyObject *moving) {
    int failed = 0;
    if (is_number(input)) {
        expected->number = Py_NewRef(input);
        return 1;
    }
    expected->moves = PyObject_IsTrue(moving);
    if (expected->moves < 0) return 0;
    if (!expected->moves) expected->data = smelt_tensor_data(input, &failed);
    return !failed;
}

static PyObject *addresses_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *inputs, *moving;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &inputs, &PyList_Type, &moving)) return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(inputs);
    if (PyList_GET_SIZE(moving) != count) {
        PyErr_SetString(PyExc_ValueError, "Addresses: two lists of one length");
        return NULL;
    }
    Addresses *self = (Addresses *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->expected = PyMem_Calloc(count ? (size_t)count : 1, sizeof(ExpectedInput));
    if (!self->expected) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read_expected(&self->expected[i], PyList_GET_ITEM(inputs, i), PyList_GET_ITEM(moving, i))) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

/* Whether a program cannot distinguish two numbers: 1 differs from 1.0, 0.0 from -0.0, and a NaN equals itself only. */
static int same_number(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    if (PyFloat_CheckExact(a)) {
        const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    return PyLong_CheckExact(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

static PyObject *addresses_first(Addresses *self, PyObject *inputs) {
    if (!PyList_Check(inputs) || PyList_GET_SIZE(inputs) != self->count)
        return PyErr_Format(PyExc_ValueError, "a list of %zd inputs", self->count);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const ExpectedInput *want = &self->expected[i];
        PyObject *input = PyList_GET_ITEM(inputs, i);
        if (i + LOOK_AHEAD < self->count)
            __builtin_prefetch(smelt_tensor_storage(PyList_GET_ITEM(inputs, i + LOOK_AHEAD)));
        if (want->moves) continue;
        if (want->number) {
            if (same_number(want->number, input)) continue;
            return PyLong_FromSsize_t(i);
        }
        int failed = 0;
        if (smelt_tensor_data(input, &failed) == want->data && !failed) continue;
        PyErr_Clear(); /* not a dense tensor, so it has no address */
        return PyLong_FromSsize_t(i);
    }
    return PyLong_FromLong(-1);
}

static PyMethodDef addresses_methods[] = {
    {"first", (PyCFunction)addresses_first, METH_O,
     "first(inputs) -> int: position of the first input with another address or value; -1 if there is none"},
    {NULL, NULL, 0, NULL},
};
PyTypeObject smelt_addresses_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Addresses",
    .tp_basicsize = sizeof(Addresses),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Addresses(inputs, moving): where tensors lie and what numbers are; inputs marked as moving may lie anywhere",
    .tp_new = addresses_new,
    .tp_dealloc = (destructor)addresses_dealloc,
    .tp_methods = addresses_methods,
};

/* -- memory --------------------------------------------------------------------------------------------------- */

struct Block;
typedef struct {
    struct Block *block;
    atomic_int alive; /* 1 while the tensor that was handed out last, or a view of it, is in use */
    int input;        /* position of the input that is this result; -1: a new tensor; -2: the caller inserts it */
    Managed managed;  /* description of the tensor; a result has at most one tensor at a time */
    int64_t dims[2 * MAX_RANK];
} Result;
typedef struct Block {
    atomic_long references; /* number of references: by the Memory, and by each tensor in use */
    PyObject *keep;
    Py_ssize_t count;
    Result results[];
} Block;
typedef struct {
    PyObject_HEAD
    Block *block;
} Memory;

static int finalizing(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static void release(Block *block) {
    if (atomic_fetch_sub(&block->references, 1) != 1) return;
    if (!Py_IsInitialized() || finalizing()) return; /* the process ends, which frees its memory */
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(block->keep);
    PyGILState_Release(state);
    free(block);
}

static void count_back(Managed *managed) {
    Result *result = managed->context;
    Block *block = result->block;
    atomic_store(&result->alive, 0);
    release(block);
}

static void memory_dealloc(Memory *self) {
    if (self->block) release(self->block);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int read_dims(PyObject *tuple, int64_t *to, Py_ssize_t rank) {
    if (PyTuple_GET_SIZE(tuple) != rank) {
        PyErr_SetString(PyExc_ValueError, "shape and stride must be of one length");
        return 0;
    }
    for (Py_ssize_t i = 0; i < rank; i++) to[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return !PyErr_Occurred();
}

static int read_result(Result *result, PyObject *kind, Device device) {
    if (kind == Py_None) {
        result->input = -2;
        return 1;
    }
    if (PyLong_Check(kind)) {
        result->input = (int)PyLong_AsLong(kind);
        if (result->input < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "position of an input");
        return !PyErr_Occurred();
    }
    unsigned long long address;
    PyObject *shape, *stride;
    int code, bits;
    if (!PyTuple_Check(kind)) {
        PyErr_SetString(PyExc_TypeError, "a result is a tuple, the position of an input, or None");
        return 0;
    }
    if (!PyArg_ParseTuple(kind, "KO!O!ii", &address, &PyTuple_Type, &shape, &PyTuple_Type, &stride, &code, &bits))
        return 0;
    const Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    if (rank > MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "a shape of at most %d sizes", MAX_RANK);
        return 0;
    }
    if (!read_dims(shape, result->dims, rank) || !read_dims(stride, result->dims + rank, rank)) return 0;
    result->input = -1;
    result->managed = (Managed){
        smelt_exchange()->version, result, count_back, 0,
        {(void *)(uintptr_t)address, device, (int)rank, {(uint8_t)code, (uint8_t)bits, 1}, result->dims,
         result->dims + rank, 0},
    };
    return 1;
}

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *keep, *kinds;
    Device device;
    if (!PyArg_ParseTuple(args, "OO!(ii)", &keep, &PyList_Type, &kinds, &device.type, &device.index)) return NULL;
    if (!smelt_exchange()) {
        PyErr_SetString(PyExc_RuntimeError, "fresh_init was not called");
        return NULL;
    }
    Memory *self = (Memory *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(kinds);
    self->block = calloc(1, sizeof(Block) + (size_t)count * sizeof(Result));
    if (!self->block) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->block->references = 1;
    self->block->keep = Py_NewRef(keep);
    self->block->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->block->results[i].block = self->block;
        if (!read_result(&self->block->results[i], PyList_GET_ITEM(kinds, i), device)) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static PyObject *hand_out(Block *block, Result *result) {
    int free_now = 0;
    if (!atomic_compare_exchange_strong(&result->alive, &free_now, 1)) {
        PyErr_SetString(PyExc_RuntimeError, "an output of the last replay is in use");
        return NULL;
    }
    atomic_fetch_add(&block->references, 1);
    void *tensor = NULL;
    if (smelt_exchange()->to_python(&result->managed, &tensor)) {
        count_back(&result->managed);
        return NULL;
    }
    return tensor;
}

static PyObject *memory_hand_out(Memory *self, PyObject *inputs) {
    if (!PyList_Check(inputs)) return PyErr_Format(PyExc_TypeError, "hand_out(inputs): a list");
    Block *block = self->block;
    PyObject *list = PyList_New(block->count);
    for (Py_ssize_t i = 0; list && i < block->count; i++) {
        Result *result = &block->results[i];
        PyObject *value = NULL;
        if (result->input == -1)
            value = hand_out(block, result);
        else if (result->input == -2)
            value = Py_NewRef(Py_None);
        else if (result->input < PyList_GET_SIZE(inputs))
            value = Py_NewRef(PyList_GET_ITEM(inputs, result->input));
        else
            PyErr_Format(PyExc_IndexError, "input %d of %zd", result->input, PyList_GET_SIZE(inputs));
        if (value)
            PyList_SET_ITEM(list, i, value);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *memory_get_in_use(Memory *self, void *closure) {
    return PyLong_FromLong(atomic_load(&self->block->references) - 1);
}

static PyObject *memory_positions(Memory *self, PyObject *unused) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < self->block->count; i++) {
        if (!atomic_load(&self->block->results[i].alive)) continue;
        PyObject *position = PyLong_FromSsize_t(i);
        if (!position || PyList_Append(list, position)) Py_CLEAR(list);
        Py_XDECREF(position);
    }
    return list;
}

static PyMethodDef memory_methods[] = {
    {"hand_out", (PyCFunction)memory_hand_out, METH_O,
     "hand_out(inputs) -> list: a new tensor for each result, the input that it is, or None"},
    {"positions", (PyCFunction)memory_positions, METH_NOARGS, "positions() -> list of the results in use"},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef memory_members[] = {
    {"in_use", (getter)memory_get_in_use, NULL, "how many of the tensors handed out are alive", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject smelt_memory_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Memory",
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Memory(keep, results, (device type, index)): each result is (address, shape, stride, DLPack code, bits), "
              "the position of an input, or None; keep lives as long as this and all tensors handed out",
    .tp_new = memory_new,
    .tp_dealloc = (destructor)memory_dealloc,
    .tp_methods = memory_methods,
    .tp_getset = memory_members,
};
