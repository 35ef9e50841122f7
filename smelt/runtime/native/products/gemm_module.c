/* Python interface of the matrix product: the Gemm type and its functions. */
#include "gemm_module.h"
#include "gemm.h"
#include "../tensor.h"
#include "../threads.h"
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    smelt_gemm shape;
} Gemm;

/* Reads `count` (2 or 3) integers into [batch,] row, column; a missing batch becomes `batch`. */
static int read_dims(PyObject *tuple, int64_t *to, int64_t batch, const char *name) {
    const Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : 0;
    if (count != 2 && count != 3) {
        PyErr_Format(PyExc_ValueError, "%s must be a tuple of 2 or 3 integers", name);
        return 0;
    }
    to[0] = batch;
    for (Py_ssize_t i = 0; i < count; i++) {
        to[i + 3 - count] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (PyErr_Occurred()) return 0;
    }
    return 1;
}

static PyObject *gemm_vectorcall(PyObject *self, PyObject *const *args, size_t flags, PyObject *keywords) {
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (keywords || count < 3 || count > 4) {
        PyErr_SetString(PyExc_TypeError, "Gemm takes (out, a, b) or (out, a, b, bias)");
        return NULL;
    }
    char *data[4] = {0};
    int failed = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++)
        if (args[i] != Py_None) data[i] = smelt_tensor_data(args[i], &failed);
    if (failed) return NULL;
    const smelt_gemm *shape = &((Gemm *)self)->shape;
    Py_BEGIN_ALLOW_THREADS
    smelt_sgemm(shape, (const float *)data[1], (const float *)data[2], (float *)data[0], (const float *)data[3]);
    Py_END_ALLOW_THREADS
    Py_INCREF(args[0]);
    return args[0];
}

static PyObject *gemm_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *a_shape, *a_stride, *b_shape, *b_stride, *c_stride;
    int accumulate = 0;
    static char *names[] = {"a_shape", "a_stride", "b_shape", "b_stride", "out_stride", "accumulate", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO|p", names, &a_shape, &a_stride, &b_shape, &b_stride,
                                     &c_stride, &accumulate))
        return NULL;
    int64_t as[3], at[3], bs[3], bt[3], ct[3];
    if (!read_dims(a_shape, as, 1, "a_shape") || !read_dims(a_stride, at, 0, "a_stride") ||
        !read_dims(b_shape, bs, 1, "b_shape") || !read_dims(b_stride, bt, 0, "b_stride") ||
        !read_dims(c_stride, ct, 0, "out_stride"))
        return NULL;
    if (as[0] != bs[0] || as[2] != bs[1]) {
        PyErr_SetString(PyExc_ValueError, "Gemm: the shapes of a and b do not fit");
        return NULL;
    }
    Gemm *gemm = (Gemm *)type->tp_alloc(type, 0);
    if (!gemm) return NULL;
    gemm->call = gemm_vectorcall;
    gemm->shape = (smelt_gemm){as[0], as[1], bs[2], as[2],      at[0], at[1], at[2], bt[0],
                               bt[1], bt[2], ct[0], ct[1], ct[2], accumulate, 1,   0};
    return (PyObject *)gemm;
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gemm, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
PyTypeObject smelt_gemm_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.runtime._native.Gemm",
    .tp_basicsize = sizeof(Gemm),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Gemm(a_shape, a_stride, b_shape, b_stride, out_stride, accumulate=False): a float32 product bound to\n"
              "shapes and strides (in elements, 2 or 3 dimensions). Call it with (out, a, b[, bias over columns]).",
    .tp_new = gemm_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Gemm, call),
    .tp_members = members,
};

static PyObject *threads_init(PyObject *module, PyObject *path) {
    const char *text = path == Py_None ? NULL : PyUnicode_AsUTF8(path);
    if (path != Py_None && !text) return NULL;
    return PyBool_FromLong(smelt_threads_init(text));
}

static PyObject *gemm_kind(PyObject *module, PyObject *unused) { return PyUnicode_FromString(smelt_gemm_kind()); }

static PyObject *gemm_select(PyObject *module, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    return text ? PyBool_FromLong(smelt_gemm_select(text)) : NULL;
}

static PyObject *sgemm_address(PyObject *module, PyObject *unused) {
    return PyLong_FromVoidPtr((void *)(uintptr_t)smelt_sgemm);
}

PyMethodDef smelt_gemm_methods[] = {
    {"threads_init", threads_init, METH_O, "threads_init(path | None) -> bool: use the loaded OpenMP runtime at path"},
    {"gemm_kind", gemm_kind, METH_NOARGS, "gemm_kind() -> 'avx512', 'avx2' or 'plain'"},
    {"gemm_select", gemm_select, METH_O, "gemm_select(name) -> bool: force an instruction set (tests)"},
    {"sgemm_address", sgemm_address, METH_NOARGS, "sgemm_address() -> int: of smelt_sgemm in native/gemm.h"},
    {NULL, NULL, 0, NULL},
};
