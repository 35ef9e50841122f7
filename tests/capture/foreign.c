/* What other libraries write in C: functions of a kind of their own (as Cython's), numbers, and objects with state. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct { PyObject_HEAD double value; } Number;
typedef struct { PyObject_HEAD PyObject *name; } Function;

static double value_of(PyObject *o) { return ((Number *)o)->value; }
static int number_init(PyObject *o, PyObject *args, PyObject *kwargs) {
    return PyArg_ParseTuple(args, "d", &((Number *)o)->value) ? 0 : -1;
}
static PyObject *number_float(PyObject *o) { return PyFloat_FromDouble(value_of(o)); }
static PyObject *number_int(PyObject *o) { return PyLong_FromDouble(value_of(o)); }
static PyObject *number_add(PyObject *a, PyObject *b) {
    return PyFloat_FromDouble(PyFloat_AsDouble(a) + PyFloat_AsDouble(b));
}
static PyObject *number_abs(PyObject *o) { return PyFloat_FromDouble(value_of(o) < 0 ? -value_of(o) : value_of(o)); }
static int number_bool(PyObject *o) { return value_of(o) != 0; }
static Py_ssize_t number_length(PyObject *o) { return (Py_ssize_t)value_of(o); }
static Py_hash_t number_hash(PyObject *o) { return (Py_hash_t)value_of(o) + 7; }
static PyObject *number_repr(PyObject *o) {
    PyObject *value = number_float(o), *out = PyUnicode_FromFormat("number(%R)", value);
    Py_XDECREF(value);
    return out;
}
static PyObject *number_compare(PyObject *a, PyObject *b, int op) {
    double x = PyFloat_AsDouble(a), y = PyFloat_AsDouble(b);
    if (PyErr_Occurred()) { PyErr_Clear(); Py_RETURN_NOTIMPLEMENTED; }
    Py_RETURN_RICHCOMPARE(x, y, op);
}
static PyObject *number_set(PyObject *o, PyObject *value) {
    ((Number *)o)->value = PyFloat_AsDouble(value);
    Py_RETURN_NONE;
}

static PyMethodDef state_methods[] = {{"set", number_set, METH_O, NULL}, {NULL}};
#define SLOTS {Py_tp_init, number_init}, {Py_nb_float, number_float}, {Py_nb_int, number_int}, {Py_nb_add, number_add}, \
    {Py_nb_absolute, number_abs}, {Py_nb_bool, number_bool}, {Py_sq_length, number_length}, \
    {Py_tp_richcompare, number_compare}, {Py_tp_hash, number_hash}
static PyType_Slot number_slots[] = {SLOTS, {Py_tp_repr, number_repr}, {0, NULL}};
static PyType_Slot state_slots[] = {SLOTS, {Py_tp_methods, state_methods}, {0, NULL}};

static PyObject *function_call(PyObject *o, PyObject *args, PyObject *kwargs) {
    PyObject *given = PyTuple_GET_ITEM(args, PyTuple_GET_SIZE(args) - 1), *two = PyLong_FromLong(2);
    PyObject *out = PyNumber_Multiply(given, two);
    Py_DECREF(two);
    return out;
}
static PyObject *function_get(PyObject *o, PyObject *self, PyObject *type) {
    return self == NULL || self == Py_None ? Py_NewRef(o) : PyMethod_New(o, self);
}
static PyType_Slot function_slots[] = {{Py_tp_call, function_call}, {Py_tp_descr_get, function_get}, {0, NULL}};

#define FLAGS Py_TPFLAGS_DEFAULT
static PyType_Spec number_spec = {"foreign.Number", sizeof(Number), 0, FLAGS, number_slots};
static PyType_Spec state_spec = {"foreign.State", sizeof(Number), 0, FLAGS, state_slots};
static PyType_Spec function_spec = {
    "foreign.function", sizeof(Function), 0, FLAGS | Py_TPFLAGS_DISALLOW_INSTANTIATION, function_slots};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "foreign", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_foreign(void) {
    PyObject *module = PyModule_Create(&definition), *kind = PyType_FromSpec(&function_spec);
    PyModule_AddObject(module, "Number", PyType_FromSpec(&number_spec));
    PyModule_AddObject(module, "State", PyType_FromSpec(&state_spec));
    PyModule_AddObject(module, "double", PyObject_CallNoArgs(kind) ? NULL : (PyErr_Clear(), PyType_GenericAlloc((PyTypeObject *)kind, 0)));
    return module;
}
