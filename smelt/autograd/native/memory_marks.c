/* Marks of tensors: hashes of shape, strides, dtype, device and (if wanted) address, to be compared at another time.
 *
 * Replacing an input's memory (`x.data = y`) changes no version counter, so the backward of each call compares the
 * marks of the inputs that it reads. A training step has hundreds of these. Reading the attributes from Python takes a
 * microsecond per tensor; torch's DLPack exchange table describes a tensor in a few nanoseconds. */
#include "memory_marks.h"
#include "../../base/native/dlpack.h"

static const Exchange *table;
static PyObject *is_neg, *is_conj;

static PyObject *memory_marks_init(PyObject *module, PyObject *tensor_type) {
    (void)module;
    if (!is_neg && !(is_neg = PyUnicode_InternFromString("is_neg"))) return NULL;
    if (!is_conj && !(is_conj = PyUnicode_InternFromString("is_conj"))) return NULL;
    const Exchange *found = smelt_exchange_of(tensor_type);
    table = found && found->borrow ? found : NULL;
    return PyBool_FromLong(table != NULL);
}

static inline uint64_t mixed(uint64_t mark, uint64_t value) {
    mark = (mark ^ value) * 0xff51afd7ed558ccdu;
    return mark ^ mark >> 32;
}

/* Whether the tensor is a lazy negation or conjugate, so that its memory does not contain its values; -1 with an error
 * set. */
static int holds_others(PyObject *tensor, int complex) {
    PyObject *answer = PyObject_CallMethodNoArgs(tensor, is_neg);
    if (answer == Py_False && complex) Py_SETREF(answer, PyObject_CallMethodNoArgs(tensor, is_conj));
    if (!answer) return -1;
    const int found = answer != Py_False;
    Py_DECREF(answer);
    return found;
}

/* Computes a tensor's mark. A real tensor is tested for a lazy negation only if its address is not part of the mark.
 * Returns 1, 0 if the tensor cannot be described, or -1 with an error set. */
static int mark_of(PyObject *tensor, int address, uint64_t *mark) {
    enum { COMPLEX = 5 };
    Description is;
    if (table->borrow(tensor, &is)) {
        PyErr_Clear();
        return 0;
    }
    const int complex = is.type.code == COMPLEX, other = address && !complex ? 0 : holds_others(tensor, complex);
    if (other) return other < 0 ? -1 : 0;
    *mark = mixed(is.rank, (uint64_t)is.type.code << 32 | (uint64_t)is.type.bits << 16 | is.type.lanes);
    *mark = mixed(*mark, (uint64_t)is.device.type << 32 | (uint32_t)is.device.index);
    for (int d = 0; d < is.rank; d++) *mark = mixed(mixed(*mark, is.shape[d]), is.strides[d]);
    if (address) *mark = mixed(*mark, (uintptr_t)is.data + is.byte_offset);
    return 1;
}

/* memory_marks(tensors, positions, address): the marks of the tensors at these positions, as bytes of 8 per tensor. */
static PyObject *memory_marks(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3 || !(PyList_Check(args[0]) || PyTuple_Check(args[0])) || !PyTuple_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "memory_marks(list or tuple of tensors, tuple of positions, address)");
    if (!table) Py_RETURN_NONE;
    const int address = PyObject_IsTrue(args[2]);
    const Py_ssize_t number = PyTuple_GET_SIZE(args[1]), limit = PySequence_Fast_GET_SIZE(args[0]);
    PyObject *marks = address < 0 ? NULL : PyBytes_FromStringAndSize(NULL, number * (Py_ssize_t)sizeof(uint64_t));
    int made = marks ? 1 : -1;
    for (Py_ssize_t i = 0; made > 0 && i < number; i++) {
        const Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        if (at < 0 || at >= limit) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_IndexError, "position %zd of %zd", at, limit);
            made = -1;
        } else
            made = mark_of(PySequence_Fast_GET_ITEM(args[0], at), address, (uint64_t *)PyBytes_AS_STRING(marks) + i);
    }
    if (made > 0) return marks;
    Py_XDECREF(marks);
    if (made < 0) return NULL;
    Py_RETURN_NONE;
}

PyMethodDef memory_marks_methods[] = {
    {"memory_marks_init", memory_marks_init, METH_O,
     "memory_marks_init(torch.Tensor) -> bool: whether tensors can be described"},
    {"memory_marks", (PyCFunction)(void (*)(void))memory_marks, METH_FASTCALL,
     "memory_marks(tensors, positions, address) -> 8 bytes for each: shape, strides, type, device and, if wanted, where "
     "it lies; None where one cannot be described"},
    {NULL, NULL, 0, NULL},
};
