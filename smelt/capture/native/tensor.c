/* TensorSpec: the metadata on which compiled code relies, compared with a tensor's metadata in a few nanoseconds.
 *
 * Metadata is read from the TensorImpl at offsets that smelt/capture/guards/calibrate.py has found and checked on
 * tensors of many kinds. If the raw reads of a spec's example differ from its description by Python, the spec compares
 * tensors through Python. */
#include "tensor.h"
#include <structmember.h>

TensorLayout layout;
static PyObject *describe; /* tensor -> (dtype, device, requires_grad, keys, plain, shape, stride) */
static PyTypeObject *tensor_type;

/* -- through Python ---------------------------------------------------------------------------- */
typedef struct {
    PyObject *all, *dtype, *device, *shape, *stride; /* borrowed from all; stride may be None */
    uint64_t keys;
    int requires_grad, plain;
} Facts;

static int facts_of(PyObject *tensor, Facts *facts) {
    PyObject *keys;
    if (!describe) return PyErr_Format(PyExc_RuntimeError, "smelt.capture.guards.calibrate has not run"), -1;
    facts->all = PyObject_CallOneArg(describe, tensor);
    if (!facts->all) return -1;
    if (PyArg_ParseTuple(facts->all, "OOpO!pO!O;describe", &facts->dtype, &facts->device, &facts->requires_grad,
                         &PyLong_Type, &keys, &facts->plain, &PyTuple_Type, &facts->shape, &facts->stride)) {
        facts->keys = PyLong_AsUnsignedLongLong(keys);
        if (!PyErr_Occurred()) return 0;
    }
    Py_CLEAR(facts->all);
    return -1;
}

/* Copies a tuple of ints (None: any) into `to`. */
static int read_ints(PyObject *tuple, int64_t *to) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        to[i] = item == Py_None ? any : PyLong_AsLongLong(item);
        if (to[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

/* Sizes, then strides, of a described tensor; strides of a tensor without strides match all. NULL with an exception. */
static int64_t *facts_ints(const Facts *facts) {
    Py_ssize_t ndim = PyTuple_GET_SIZE(facts->shape);
    int64_t *ints = PyMem_Malloc((size_t)(2 * ndim + 1) * sizeof(int64_t));
    if (!ints) return (int64_t *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < ndim; i++) ints[ndim + i] = any;
    int strided = PyTuple_Check(facts->stride) && PyTuple_GET_SIZE(facts->stride) == ndim;
    if (read_ints(facts->shape, ints) == 0 && (!strided || read_ints(facts->stride, ints + ndim) == 0)) return ints;
    PyMem_Free(ints);
    return NULL;
}

/* A text for the first difference as a new reference; None if the tensor matches; NULL with an exception. */
static PyObject *difference(const TensorSpec *spec, const Facts *facts, const int64_t *ints) {
    int equal = PyObject_RichCompareBool(facts->dtype, spec->dtype, Py_EQ);
    if (equal < 0) return NULL;
    if (!equal) return PyUnicode_FromFormat("dtype: expected %S, got %S", spec->dtype, facts->dtype);
    equal = PyObject_RichCompareBool(facts->device, spec->device, Py_EQ);
    if (equal < 0) return NULL;
    if (!equal) return PyUnicode_FromFormat("device: expected %S, got %S", spec->device, facts->device);
    Py_ssize_t ndim = PyTuple_GET_SIZE(facts->shape);
    if (ndim != spec->ndim) return PyUnicode_FromFormat("dimensions: expected %d, got %zd", (int)spec->ndim, ndim);
    for (Py_ssize_t i = 0; i < ndim; i++)
        if (spec->wanted[i] != any && spec->wanted[i] != ints[i])
            return PyUnicode_FromFormat("shape[%zd]: expected %lld, got %lld", i, (long long)spec->wanted[i],
                                        (long long)ints[i]);
    if (spec->ordered && !is_dense_in_order(spec, ints, ints + ndim))
        return PyUnicode_FromFormat("stride: expected dense in the order %S, got %S", spec->order, facts->stride);
    for (Py_ssize_t i = 0; i < ndim; i++)
        if (spec->wanted[ndim + i] != any && spec->wanted[ndim + i] != ints[ndim + i])
            return PyUnicode_FromFormat("stride[%zd]: expected %lld, got %lld", i, (long long)spec->wanted[ndim + i],
                                        (long long)ints[ndim + i]);
    if (spec->requires_grad >= 0 && facts->requires_grad != spec->requires_grad)
        return PyUnicode_FromFormat("requires_grad: expected %s", spec->requires_grad ? "True" : "False");
    if (facts->keys != spec->keys)
        return PyUnicode_FromFormat("dispatch keys: expected %llx, got %llx", (unsigned long long)spec->keys,
                                    (unsigned long long)facts->keys);
    Py_RETURN_NONE;
}

static PyObject *mismatch(TensorSpec *spec, PyObject *value) {
    Facts facts;
    if (Py_TYPE(value) != spec->type)
        return PyUnicode_FromFormat("class: expected %s, got %s", spec->type->tp_name, Py_TYPE(value)->tp_name);
    if (facts_of(value, &facts) < 0) return NULL;
    int64_t *ints = facts_ints(&facts);
    PyObject *text = ints ? difference(spec, &facts, ints) : NULL;
    PyMem_Free(ints);
    Py_DECREF(facts.all);
    return text;
}

int slow_matches(TensorSpec *spec, PyObject *value) {
    PyObject *text = mismatch(spec, value);
    int same = text == Py_None;
    Py_XDECREF(text);
    if (!text) PyErr_Clear();
    return same;
}



int tensor_spec_matches(PyObject *spec, PyObject *value) { return spec_holds((TensorSpec *)spec, value); }

int tensor_spec_is_raw(PyObject *spec) { return ((TensorSpec *)spec)->raw; }

PyObject *tensor_size(PyObject *tensor, Py_ssize_t dim, int raw) {
    if (raw) {
        const char *impl = impl_of(tensor);
        int64_t ndim = (int64_t)word(impl + layout.dims);
        if (dim < 0) dim += ndim;
        return dim >= 0 && dim < ndim ? PyLong_FromLongLong(sizes_of(impl, ndim)[dim]) : NULL;
    }
    PyObject *shape = PyObject_GetAttrString(tensor, "shape");
    PyObject *size = shape ? PySequence_GetItem(shape, dim) : NULL;
    Py_XDECREF(shape);
    return size;
}

/* -- the type ---------------------------------------------------------------------------------- */
/* Makes a tuple of `ndim` ints or Nones from the argument `given`, or from the example's tuple if it is None. */
static PyObject *pattern(PyObject *given, PyObject *example, Py_ssize_t ndim, const char *what) {
    PyObject *tuple = PySequence_Tuple(given ? given : example);
    if (tuple && PyTuple_GET_SIZE(tuple) != ndim) {
        PyErr_Format(PyExc_ValueError, "%s has %zd elements, the tensor %zd dims", what, PyTuple_GET_SIZE(tuple), ndim);
        Py_CLEAR(tuple);
    }
    return tuple;
}

/* Sets the dimensions that must be dense in memory, innermost first. */
static int set_order(TensorSpec *spec, PyObject *order) {
    Py_ssize_t count = PySequence_Size(order);
    spec->order = count < 0 ? NULL : PySequence_Tuple(order);
    if (!spec->order) return -1;
    int64_t *dims = spec->wanted + 2 * spec->ndim;
    if (count > spec->ndim) return PyErr_SetString(PyExc_ValueError, "order names a dimension twice"), -1;
    if (read_ints(spec->order, dims) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (dims[i] < 0 || dims[i] >= spec->ndim)
            return PyErr_Format(PyExc_ValueError, "order: no dimension %lld", (long long)dims[i]), -1;
    spec->ordered = (int32_t)count;
    return 0;
}

static int set_shape(TensorSpec *spec, const Facts *facts, PyObject *shape, PyObject *stride) {
    Py_ssize_t ndim = PyTuple_GET_SIZE(facts->shape);
    spec->ndim = (int32_t)ndim;
    spec->wanted = PyMem_Malloc((size_t)(3 * ndim + 1) * sizeof(int64_t));
    if (!spec->wanted) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < ndim; i++) spec->wanted[ndim + i] = any;
    spec->shape = pattern(shape, facts->shape, ndim, "shape");
    if (!spec->shape || read_ints(spec->shape, spec->wanted) < 0) return -1;
    if (!stride && facts->stride == Py_None) { /* sparse and nested tensors have no strides */
        spec->stride = Py_NewRef(Py_None);
        return 0;
    }
    spec->stride = pattern(stride, facts->stride, ndim, "stride");
    return spec->stride ? read_ints(spec->stride, spec->wanted + ndim) : -1;
}

/* Whether raw reads of the example give the metadata by which Python describes it. */
static int reads_raw(const Facts *facts, PyObject *tensor) {
    if (!layout.known || !facts->plain || facts->stride == Py_None) return 0;
    char *impl = impl_of(tensor);
    Py_ssize_t ndim = PyTuple_GET_SIZE(facts->shape);
    if (!impl || word(impl + layout.keys) != facts->keys || word(impl + layout.dims) != (uint64_t)ndim ||
        !!layout.requires_grad(impl) != facts->requires_grad)
        return 0;
    int64_t *ints = facts_ints(facts);
    if (!ints) return PyErr_Clear(), 0;
    const int64_t *sizes = sizes_of(impl, ndim), *strides = strides_of(sizes, ndim);
    int same = !memcmp(sizes, ints, (size_t)ndim * 8) && !memcmp(strides, ints + ndim, (size_t)ndim * 8);
    PyMem_Free(ints);
    return same;
}

/* Sets itemsize and is_float_on_cpu; -1 with an exception. */
static int set_element(TensorSpec *spec) {
    PyObject *size = PyObject_GetAttrString(spec->dtype, "itemsize");
    PyObject *floating = PyObject_GetAttrString(spec->dtype, "is_floating_point");
    PyObject *type = PyObject_GetAttrString(spec->device, "type");
    if (size && floating && type && PyUnicode_Check(type)) {
        spec->itemsize = (int32_t)PyLong_AsLong(size);
        spec->is_float_on_cpu = floating == Py_True && (spec->itemsize == 4 || spec->itemsize == 8) &&
                                PyUnicode_CompareWithASCIIString(type, "cpu") == 0;
    }
    Py_XDECREF(size);
    Py_XDECREF(floating);
    Py_XDECREF(type);
    return PyErr_Occurred() ? -1 : 0;
}

static int set_requires_grad(TensorSpec *spec, const Facts *facts, PyObject *given) {
    if (!given || PyUnicode_Check(given)) spec->requires_grad = (int8_t)facts->requires_grad;
    else if (given == Py_None) spec->requires_grad = -1;
    else spec->requires_grad = (int8_t)PyObject_IsTrue(given);
    return spec->requires_grad < 0 && given != Py_None ? -1 : 0;
}

static PyObject *spec_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"tensor", "shape", "stride", "order", "requires_grad", NULL};
    PyObject *tensor, *shape = NULL, *stride = NULL, *order = NULL, *requires_grad = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOOO", names, &tensor, &shape, &stride, &order,
                                     &requires_grad))
        return NULL;
    if (!tensor_type || !PyObject_TypeCheck(tensor, tensor_type))
        return PyErr_Format(PyExc_TypeError, "TensorSpec wants a tensor, got %s", Py_TYPE(tensor)->tp_name);
    Facts facts;
    if (facts_of(tensor, &facts) < 0) return NULL;
    TensorSpec *spec = (TensorSpec *)type->tp_alloc(type, 0);
    if (spec) {
        spec->type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(tensor));
        spec->dtype = Py_NewRef(facts.dtype);
        spec->device = Py_NewRef(facts.device);
        spec->keys = facts.keys;
        spec->raw = (int8_t)reads_raw(&facts, tensor);
        if (spec->raw) spec->kind = word(impl_of(tensor) + layout.kind) & layout.kind_mask;
        if (set_shape(spec, &facts, shape == Py_None ? NULL : shape, stride == Py_None ? NULL : stride) < 0 ||
            (order && set_order(spec, order) < 0) ||
            set_requires_grad(spec, &facts, requires_grad) < 0 || set_element(spec) < 0)
            Py_CLEAR(spec);
    }
    Py_DECREF(facts.all);
    return (PyObject *)spec;
}

static int spec_traverse(TensorSpec *spec, visitproc visit, void *arg) {
    Py_VISIT(spec->type);
    return 0;
}

static void spec_dealloc(TensorSpec *spec) {
    PyObject_GC_UnTrack(spec);
    Py_XDECREF(spec->type);
    Py_XDECREF(spec->dtype);
    Py_XDECREF(spec->device);
    Py_XDECREF(spec->shape);
    Py_XDECREF(spec->stride);
    Py_XDECREF(spec->order);
    PyMem_Free(spec->wanted);
    Py_TYPE(spec)->tp_free((PyObject *)spec);
}

static PyObject *spec_matches(TensorSpec *spec, PyObject *value) {
    return PyBool_FromLong(tensor_spec_matches((PyObject *)spec, value));
}

static PyObject *spec_requires_grad(TensorSpec *spec, void *unused) {
    if (spec->requires_grad < 0) Py_RETURN_NONE;
    return PyBool_FromLong(spec->requires_grad);
}

static PyObject *spec_repr(TensorSpec *spec) {
    const char *gradient = spec->requires_grad < 0 ? "any" : spec->requires_grad ? "True" : "False";
    return PyUnicode_FromFormat("TensorSpec(%s, %S, %S, shape=%R, stride=%R, order=%R, requires_grad=%s)",
                                spec->type->tp_name, spec->dtype, spec->device, spec->shape, spec->stride,
                                spec->order ? spec->order : Py_None, gradient);
}

static PyMethodDef spec_methods[] = {
    {"matches", (PyCFunction)spec_matches, METH_O, "matches(value) -> bool"},
    {"mismatch", (PyCFunction)mismatch, METH_O, "mismatch(value) -> the first difference in words, or None"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef spec_members[] = {
    {"type", T_OBJECT, offsetof(TensorSpec, type), READONLY, "the exact class"},
    {"dtype", T_OBJECT, offsetof(TensorSpec, dtype), READONLY, NULL},
    {"device", T_OBJECT, offsetof(TensorSpec, device), READONLY, NULL},
    {"shape", T_OBJECT, offsetof(TensorSpec, shape), READONLY, "sizes, None where any will do"},
    {"stride", T_OBJECT, offsetof(TensorSpec, stride), READONLY, "strides, None where any will do"},
    {"order", T_OBJECT, offsetof(TensorSpec, order), READONLY, "dimensions that lie densely, innermost first"},
    {"keys", T_ULONGLONG, offsetof(TensorSpec, keys), READONLY, "the dispatch keys"},
    {"raw", T_BOOL, offsetof(TensorSpec, raw), READONLY, "whether memory is read directly"},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef spec_getset[] = {
    {"requires_grad", (getter)spec_requires_grad, NULL, "None where any will do", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject TensorSpecType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.TensorSpec",
    .tp_doc = "TensorSpec(tensor, *, shape=None, stride=None, order=(), requires_grad='example'): what a TENSOR check compares",
    .tp_basicsize = sizeof(TensorSpec),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = spec_new,
    .tp_dealloc = (destructor)spec_dealloc,
    .tp_traverse = (traverseproc)spec_traverse,
    .tp_repr = (reprfunc)spec_repr,
    .tp_methods = spec_methods,
    .tp_members = spec_members,
    .tp_getset = spec_getset,
};

/* -- set-up ------------------------------------------------------------------------------------ */
static int layout_number(PyObject *numbers, const char *name, unsigned long long *to) {
    PyObject *item = PyMapping_GetItemString(numbers, name);
    *to = item ? PyLong_AsUnsignedLongLong(item) : 0;
    Py_XDECREF(item);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *set_tensor_layout(PyObject *module, PyObject *args) {
    static const char *const names[] = {"impl", "keys", "dims", "kind", "kind_mask", "requires_grad",
                                       "storage", "storage_offset", "data", "hooks", "late_hooks", "gradients"};
    enum { COUNT = sizeof names / sizeof *names };
    PyObject *type, *function, *numbers;
    unsigned long long found[COUNT] = {0};
    if (!PyArg_ParseTuple(args, "O!OO", &PyType_Type, &type, &function, &numbers)) return NULL;
    for (int i = 0; numbers != Py_None && i < COUNT; i++)
        if (layout_number(numbers, names[i], &found[i]) < 0) return NULL;
    Py_XSETREF(describe, Py_NewRef(function));
    Py_XSETREF(tensor_type, (PyTypeObject *)Py_NewRef(type));
    layout.impl = (Py_ssize_t)found[0];
    layout.keys = (Py_ssize_t)found[1];
    layout.dims = (Py_ssize_t)found[2];
    layout.kind = (Py_ssize_t)found[3];
    layout.kind_mask = found[4];
    layout.requires_grad = (unsigned char (*)(void *))(uintptr_t)found[5];
    layout.storage = (Py_ssize_t)found[6];
    layout.storage_offset = (Py_ssize_t)found[7];
    layout.data = (Py_ssize_t)found[8];
    layout.hooks = (Py_ssize_t)found[9];
    layout.late_hooks = (Py_ssize_t)found[10];
    layout.gradients = (Py_ssize_t)found[11];
    layout.known = numbers != Py_None;
    Py_RETURN_NONE;
}
