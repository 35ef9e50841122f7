/* The module's table. */
#include "native.h"

PyObject *smelt_null;

static PyObject *null_repr(PyObject *self) { return PyUnicode_FromString("<NULL>"); }
static int null_bool(PyObject *self) { return 0; }
static PyObject *null_reduce(PyObject *self, PyObject *unused) { return PyUnicode_FromString("NULL"); }
static PyMethodDef null_methods[] = {{"__reduce__", null_reduce, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyNumberMethods null_number = {.nb_bool = null_bool};
static PyTypeObject NullType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native._Null",
    .tp_doc = "the type of NULL",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = null_repr,
    .tp_as_number = &null_number,
    .tp_methods = null_methods,
};

static PyMethodDef own_methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_VARARGS, "set_tensor_layout(torch.Tensor, describe, numbers/None)"},
    {"set_state_readers", set_state_readers, METH_VARARGS, "set_state_readers(readers, path of libc10 or None)"},
    {"state", state_now, METH_NOARGS, "state(): the present values of the ambient modes"},
    {"set_equality", set_equality, METH_O, "set_equality(function): compares two ranges, numbers of numpy and the like, where == does not suffice"},
    {"is_slot", is_slot_method, METH_O, "is_slot(object): whether it is the key of a SLOT fetch"},
    {"takes_all", takes_all_method, METH_O, "takes_all(object): whether it is a slot that can be set to any object"},
    {"instance_dict", instance_dict_method, METH_O,
     "instance_dict(object): its attributes, also where `__dict__` does not show them; None: it has none"},
    {"name_in_c", name_in_c, METH_O, "name_in_c(type): its name in errors of C code; types made in C include the module"},
    {"state_names", state_names, METH_NOARGS, "state_names(): the names of the modes in state()"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "smelt.capture._native",
    .m_doc = "The C core of capture; see _native.pyi.",
    .m_size = -1,
    .m_methods = own_methods,
};

static int add_types(PyObject *module) {
    PyTypeObject *types[] = {&CompiledType, &QuietType,      &CacheEntryType, &ResumePointType,
                             &GuardsType,   &TensorSpecType, &VariantsType, &NullType};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(module, types[i]) < 0) return -1;
    smelt_null = PyObject_New(PyObject, &NullType);
    return smelt_null ? PyModule_AddObjectRef(module, "NULL", smelt_null) : -1;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (add_types(module) < 0 || PyModule_AddFunctions(module, running_methods) < 0 ||
        PyModule_AddFunctions(module, entries_methods) < 0 || PyModule_AddFunctions(module, frame_methods) < 0 ||
        PyModule_AddFunctions(module, generators_methods) < 0 || PyModule_AddFunctions(module, iterators_methods) < 0 ||
        PyModule_AddFunctions(module, finalizers_methods) < 0 || PyModule_AddFunctions(module, handled_methods) < 0 ||
        guards_ready(module) < 0 || entries_ready() < 0 || iterators_ready() < 0 || running_ready() < 0 || frame_ready() < 0)
        Py_CLEAR(module);
    return module;
}
