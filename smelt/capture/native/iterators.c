/* Where the iterator over a dict stands, and another put at the same place.
 *
 * Such an iterator raises when its dict has changed its size, so one that outlives a capture must iterate the dict itself
 * and know the size that it began with. `__reduce__` gives an iterator over a list of the rest, which knows neither. */
#include "native.h"

/* As in CPython's Objects/dictobject.c, 3.11 to 3.13. */
typedef struct {
    PyObject_HEAD
    PyDictObject *dict; /* NULL when it is exhausted */
    Py_ssize_t used;    /* items of the dict when it began; -1 once it raised */
    Py_ssize_t at;      /* index of the entry that it looks at next */
    PyObject *result;
    Py_ssize_t left;    /* items to come */
} DictIterator;

static DictIterator *dict_iterator(PyObject *value) {
    PyTypeObject *kind = Py_TYPE(value);
    if (kind == &PyDictIterKey_Type || kind == &PyDictIterValue_Type || kind == &PyDictIterItem_Type)
        return (DictIterator *)value;
    PyErr_Format(PyExc_TypeError, "an iterator over a dict, not a %s", kind->tp_name);
    return NULL;
}

static PyObject *dict_iterator_place(PyObject *module, PyObject *value) {
    const DictIterator *self = dict_iterator(value);
    if (!self) return NULL;
    if (!self->dict) Py_RETURN_NONE;
    Py_ssize_t at = 0, passed = 0;
    while (PyDict_Next((PyObject *)self->dict, &at, NULL, NULL) && at <= self->at) passed++;
    return Py_BuildValue("(Onnn)", self->dict, passed, self->used, self->left);
}

static PyObject *put_dict_iterator(PyObject *module, PyObject *args) {
    PyObject *value;
    Py_ssize_t passed, used, left, at = 0;
    if (!PyArg_ParseTuple(args, "Onnn", &value, &passed, &used, &left)) return NULL;
    DictIterator *self = dict_iterator(value);
    if (!self) return NULL;
    if (!self->dict) return PyErr_Format(PyExc_ValueError, "this iterator is exhausted");
    while (passed-- > 0 && PyDict_Next((PyObject *)self->dict, &at, NULL, NULL));
    self->at = at;
    self->used = used;
    self->left = left;
    Py_RETURN_NONE;
}

PyMethodDef iterators_methods[] = {
    {"dict_iterator_place", dict_iterator_place, METH_O,
     "dict_iterator_place(iterator) -> (dict, items passed, items when it began, items left), None when exhausted"},
    {"put_dict_iterator", put_dict_iterator, METH_VARARGS,
     "put_dict_iterator(iterator, passed, used, left): as `dict_iterator_place` of another has told"},
    {NULL, NULL, 0, NULL},
};
