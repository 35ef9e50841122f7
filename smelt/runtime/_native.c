/* smelt.runtime._native: tables of base pointers, launches of kernels, and the module of the files in
 * smelt/runtime/native.
 *
 * A kernel is `void f(char **P)`: P contains the base pointers of inputs, outputs, arena and external results. A table
 * does not own the tensors: the host program keeps them alive while it launches. No part of this file links torch. */
#include "native/concatenate.h"
#include "native/cuda/cuda.h"
#include "native/products/depthwise.h"
#include "native/fresh.h"
#include "native/products/gemm_module.h"
#include "native/nonzero.h"
#include "native/recorded.h"
#include "native/table.h"
#include "native/tensor.h"
#include <structmember.h>
#include <stdint.h>

typedef void (*Kernel)(char **);
typedef struct {
    PyObject_HEAD
    Py_ssize_t size;
    char **slots;
} Table;
static PyTypeObject TableType;

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    Py_ssize_t size;
    static char *names[] = {"size", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n", names, &size)) return NULL;
    if (size < 0) return PyErr_Format(PyExc_ValueError, "a table of %zd slots", size);
    Table *table = (Table *)type->tp_alloc(type, 0);
    if (!table) return NULL;
    table->size = size;
    table->slots = PyMem_Calloc(size ? (size_t)size : 1, sizeof(char *));
    if (!table->slots) {
        Py_DECREF(table);
        return PyErr_NoMemory();
    }
    return (PyObject *)table;
}

static void table_dealloc(Table *table) {
    PyMem_Free(table->slots);
    Py_TYPE(table)->tp_free((PyObject *)table);
}

static int slot_of(Table *table, PyObject *index, Py_ssize_t *slot) {
    *slot = PyLong_AsSsize_t(index);
    if (*slot == -1 && PyErr_Occurred()) return 0;
    if (*slot >= 0 && *slot < table->size) return 1;
    PyErr_Format(PyExc_IndexError, "slot %zd of a table with %zd slots", *slot, table->size);
    return 0;
}

static int wants(Py_ssize_t given, Py_ssize_t wanted, const char *signature) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", signature, wanted, given);
    return 0;
}

static PyObject *table_bind(Table *table, PyObject *const *args, Py_ssize_t count) {
    Py_ssize_t slot;
    int failed = 0;
    if (!wants(count, 2, "bind(slot, tensor)") || !slot_of(table, args[0], &slot)) return NULL;
    char *data = smelt_tensor_data(args[1], &failed);
    if (failed) return NULL;
    table->slots[slot] = data;
    Py_RETURN_NONE;
}

static PyObject *table_bind_all(Table *table, PyObject *const *args, Py_ssize_t count) {
    Py_ssize_t first;
    if (!wants(count, 2, "bind_all(first_slot, tensors)") || !slot_of(table, args[0], &first)) return NULL;
    if (!PyList_Check(args[1]) && !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "bind_all: tensors must be a list or a tuple");
        return NULL;
    }
    Py_ssize_t number = PySequence_Fast_GET_SIZE(args[1]);
    if (number > table->size - first)
        return PyErr_Format(PyExc_IndexError, "%zd tensors from slot %zd of %zd", number, first, table->size);
    for (Py_ssize_t i = 0; i < number; i++) {
        int failed = 0;
        char *data = smelt_tensor_data(PySequence_Fast_GET_ITEM(args[1], i), &failed);
        if (failed) return NULL;
        table->slots[first + i] = data;
    }
    Py_RETURN_NONE;
}

static PyObject *table_set(Table *table, PyObject *const *args, Py_ssize_t count) {
    Py_ssize_t slot;
    if (!wants(count, 2, "set(slot, address)") || !slot_of(table, args[0], &slot)) return NULL;
    void *address = PyLong_AsVoidPtr(args[1]);
    if (!address && PyErr_Occurred()) return NULL;
    table->slots[slot] = address;
    Py_RETURN_NONE;
}

static PyObject *table_get(Table *table, PyObject *index) {
    Py_ssize_t slot;
    return slot_of(table, index, &slot) ? PyLong_FromVoidPtr(table->slots[slot]) : NULL;
}

static PyObject *table_copy(Table *table, PyObject *unused) {
    PyObject *copy = PyObject_CallFunction((PyObject *)&TableType, "n", table->size);
    if (copy) memcpy(((Table *)copy)->slots, table->slots, (size_t)table->size * sizeof(char *));
    return copy;
}

static Py_ssize_t table_length(PyObject *table) { return ((Table *)table)->size; }

static PyMethodDef table_methods[] = {
    {"bind", (PyCFunction)(void (*)(void))table_bind, METH_FASTCALL, "bind(slot, tensor): its data pointer"},
    {"bind_all", (PyCFunction)(void (*)(void))table_bind_all, METH_FASTCALL,
     "bind_all(first_slot, tensors): data pointers of a list or tuple of tensors into consecutive slots"},
    {"set", (PyCFunction)(void (*)(void))table_set, METH_FASTCALL, "set(slot, address): a raw address"},
    {"get", (PyCFunction)table_get, METH_O, "get(slot) -> int"},
    {"copy", (PyCFunction)table_copy, METH_NOARGS, "copy() -> Table: for a second thread"},
    {NULL, NULL, 0, NULL},
};
static PySequenceMethods table_sequence = {.sq_length = table_length};
static PyMemberDef table_members[] = {
    {"address", T_ULONGLONG, offsetof(Table, slots), READONLY, "address of slot 0"},
    {NULL, 0, 0, 0, NULL},
};
static PyTypeObject TableType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Table",
    .tp_basicsize = sizeof(Table),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Table(size): the base pointers that one launch of a program passes to its kernels",
    .tp_new = table_new,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_methods = table_methods,
    .tp_members = table_members,
    .tp_as_sequence = &table_sequence,
};

char **smelt_table_slots(PyObject *table, Py_ssize_t *size) {
    if (Py_TYPE(table) != &TableType) {
        PyErr_SetString(PyExc_TypeError, "expected a Table");
        return NULL;
    }
    *size = ((Table *)table)->size;
    return ((Table *)table)->slots;
}

static int launch_arguments(PyObject *const *args, Py_ssize_t count, Kernel *kernel, Table **table) {
    if (!wants(count, 2, "launch(address, table)")) return 0;
    void *address = PyLong_AsVoidPtr(args[0]);
    if (!address) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "launch: address 0");
        return 0;
    }
    if (Py_TYPE(args[1]) != &TableType) {
        PyErr_SetString(PyExc_TypeError, "launch: the second argument must be a Table");
        return 0;
    }
    *kernel = (Kernel)address;
    *table = (Table *)args[1];
    return 1;
}

static PyObject *launch(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Kernel kernel;
    Table *table;
    if (!launch_arguments(args, count, &kernel, &table)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    kernel(table->slots);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *launch_short(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    Kernel kernel;
    Table *table;
    if (!launch_arguments(args, count, &kernel, &table)) return NULL;
    kernel(table->slots);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL,
     "launch(address, table): run a kernel with the GIL released"},
    {"launch_short", (PyCFunction)(void (*)(void))launch_short, METH_FASTCALL,
     "launch_short(address, table): run a kernel of a few microseconds, holding the GIL"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "smelt.runtime._native", "Launcher and matrix product; see _native.c", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (PyType_Ready(&TableType) < 0 || PyType_Ready(&smelt_gemm_type) < 0 ||
        PyType_Ready(&smelt_fresh_type) < 0 || PyType_Ready(&smelt_addresses_type) < 0 ||
        PyType_Ready(&smelt_memory_type) < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (PyModule_AddType(module, &TableType) < 0 || PyModule_AddType(module, &smelt_gemm_type) < 0 ||
        PyModule_AddType(module, &smelt_fresh_type) < 0 || smelt_cuda_add(module) < 0 ||
        PyModule_AddType(module, &smelt_addresses_type) < 0 || PyModule_AddType(module, &smelt_memory_type) < 0 ||
        PyModule_AddFunctions(module, smelt_fresh_methods) < 0 ||
        PyModule_AddFunctions(module, smelt_tensor_methods) < 0 ||
        PyModule_AddFunctions(module, smelt_gemm_methods) < 0 ||
        PyModule_AddFunctions(module, smelt_concatenate_methods) < 0 ||
        PyModule_AddFunctions(module, smelt_nonzero_methods) < 0 ||
        PyModule_AddIntConstant(module, "NONZERO_MOST", SMELT_NONZERO_MOST) < 0 ||
        PyModule_AddFunctions(module, smelt_depthwise_methods) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
