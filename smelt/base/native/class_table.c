/* Lookups by class that run no code of the user's classes.
 *
 * ClassTable: a map from classes, by identity, to values. A dictionary would call `__hash__` and `__eq__` of the
 * metaclass, which may return any object or raise an error for a user's class.
 *
 * isinstance: tests an object's class. The builtin also reads its `__class__`, which may be a property in the user's
 * class. */
#define PY_SSIZE_T_CLEAN
#include "class_table.h"
#include <stdint.h>
#include <string.h>

typedef struct {
    PyObject *key, *value; /* strong references; key is NULL in a free row */
} Row;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, mask; /* mask + 1 rows: a power of two, at least twice the number of classes */
    Row *rows;
} ClassTable;

static Row *row_of(const ClassTable *self, const PyObject *key) {
    Py_ssize_t at = (Py_ssize_t)(((uintptr_t)key >> 4) & (uintptr_t)self->mask);
    while (self->rows[at].key && self->rows[at].key != key) at = (at + 1) & self->mask;
    return &self->rows[at];
}

static void enter(ClassTable *self, PyObject *key, PyObject *value) {
    Row *row = row_of(self, key);
    if (!row->key) {
        row->key = Py_NewRef(key);
        self->count++;
    }
    Py_XSETREF(row->value, Py_NewRef(value));
}

static int fill(ClassTable *self, PyObject *pairs) {
    Py_ssize_t count = PyList_GET_SIZE(pairs), rows = 4;
    while (rows < 2 * count) rows *= 2;
    self->rows = PyMem_Calloc((size_t)rows, sizeof(Row));
    if (!self->rows) {
        PyErr_NoMemory();
        return -1;
    }
    self->mask = rows - 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(pairs, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "a ClassTable is made of pairs (class, value)");
            return -1;
        }
        enter(self, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    return 0;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *given;
    if (kwargs && PyDict_GET_SIZE(kwargs)) return PyErr_Format(PyExc_TypeError, "ClassTable() takes no keywords");
    if (!PyArg_ParseTuple(args, "O:ClassTable", &given)) return NULL;
    PyObject *pairs = PySequence_List(given);
    if (!pairs) return NULL;
    ClassTable *self = (ClassTable *)type->tp_alloc(type, 0);
    if (self && fill(self, pairs) < 0) Py_CLEAR(self);
    Py_DECREF(pairs);
    return (PyObject *)self;
}

static int table_traverse(ClassTable *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; self->rows && i <= self->mask; i++) {
        Py_VISIT(self->rows[i].key);
        Py_VISIT(self->rows[i].value);
    }
    return 0;
}

static void table_dealloc(ClassTable *self) {
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; self->rows && i <= self->mask; i++) {
        Py_XDECREF(self->rows[i].key);
        Py_XDECREF(self->rows[i].value);
    }
    PyMem_Free(self->rows);
    Py_TYPE(self)->tp_free(self);
}

static int table_contains(PyObject *self, PyObject *key) { return row_of((ClassTable *)self, key)->key != NULL; }

static Py_ssize_t table_length(PyObject *self) { return ((ClassTable *)self)->count; }

static PyObject *table_item(PyObject *self, PyObject *key) {
    Row *row = row_of((ClassTable *)self, key);
    if (row->key) return Py_NewRef(row->value);
    return PyErr_Format(PyExc_KeyError, "%R", key);
}

static PyObject *table_get(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count < 1 || count > 2) return PyErr_Format(PyExc_TypeError, "get() takes a class and a default");
    Row *row = row_of((ClassTable *)self, args[0]);
    return Py_NewRef(row->key ? row->value : count == 2 ? args[1] : Py_None);
}

static PyObject *table_iter(PyObject *object) {
    ClassTable *self = (ClassTable *)object;
    PyObject *keys = PyList_New(0);
    for (Py_ssize_t i = 0; keys && i <= self->mask; i++)
        if (self->rows[i].key && PyList_Append(keys, self->rows[i].key) < 0) Py_CLEAR(keys);
    PyObject *out = keys ? PyObject_GetIter(keys) : NULL;
    Py_XDECREF(keys);
    return out;
}

static PyMethodDef table_methods[] = {
    {"get", (PyCFunction)(void (*)(void))table_get, METH_FASTCALL, "get(class, default=None): what is known of the class"},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "ClassTable[V]: a table of values of this type"},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods table_sequence = {.sq_contains = table_contains};
static PyMappingMethods table_mapping = {.mp_length = table_length, .mp_subscript = table_item};

static PyTypeObject ClassTableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt.base._native.ClassTable",
    .tp_doc = "ClassTable(pairs): an immutable table from classes, by identity, to values",
    .tp_basicsize = sizeof(ClassTable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = table_new,
    .tp_traverse = (traverseproc)table_traverse,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_iter = table_iter,
    .tp_methods = table_methods,
    .tp_as_sequence = &table_sequence,
    .tp_as_mapping = &table_mapping,
};

/* -- isinstance() for objects of the program ---------------------------------------------------- */

static PyObject *checker; /* "__instancecheck__" */

/* The `__instancecheck__` of the metaclass; NULL if it inherits that of `type`. */
static PyObject *own_check(PyTypeObject *meta) {
    PyObject *found = meta == &PyType_Type ? NULL : _PyType_Lookup(meta, checker);
    return found == _PyType_Lookup(&PyType_Type, checker) ? NULL : found;
}

static int is_kind(PyObject *value, PyObject *kinds) {
    if (PyTuple_Check(kinds)) {
        int found = 0;
        for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(kinds); i++)
            found = is_kind(value, PyTuple_GET_ITEM(kinds, i));
        return found;
    }
    if (!PyType_Check(kinds)) return PyObject_IsInstance(value, kinds);
    if (PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)kinds)) return 1;
    PyTypeObject *meta = Py_TYPE(kinds);
    PyObject *check = own_check(meta);
    if (!check) return 0;
    /* the check of `abc.ABCMeta` would read `__class__`; asking for the object's class gives the same result */
    if (!strcmp(meta->tp_name, "ABCMeta")) return PyObject_IsSubclass((PyObject *)Py_TYPE(value), kinds);
    return PyObject_IsInstance(value, kinds);
}

PyObject *isinstance_method(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "isinstance expected 2 arguments, got %zd", count);
    int found = is_kind(args[0], args[1]);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

int class_table_ready(PyObject *module) {
    checker = PyUnicode_InternFromString("__instancecheck__");
    return checker ? PyModule_AddType(module, &ClassTableType) : -1;
}
