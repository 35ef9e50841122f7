/* Where the iterator over a dict or set stands, and another put at the same place.
 *
 * Such an iterator raises when what it iterates has changed its size, so one that outlives a capture must iterate that
 * itself and know the size that it began with. `__reduce__` gives an iterator over a list of the rest, which knows
 * neither. */
#include "native.h"

/* As in CPython's Objects/dictobject.c and Objects/setobject.c, 3.11 to 3.13. */
typedef struct {
    PyObject_HEAD
    PyObject *iterated; /* the dict or set; NULL when it is exhausted */
    Py_ssize_t used;    /* its items when the iterator began; -1 once it raised */
    Py_ssize_t at;      /* index of the entry to look at next */
} SizedIterator;

typedef struct {
    SizedIterator base;
    PyObject *result;
    Py_ssize_t left; /* items to come */
} DictIterator;

typedef struct {
    SizedIterator base;
    Py_ssize_t left;
} SetIterator;

static PyTypeObject *set_iterator; /* borrowed: types of the interpreter stay */

static Py_ssize_t *left_of(PyObject *value) {
    PyTypeObject *kind = Py_TYPE(value);
    if (kind == &PyDictIterKey_Type || kind == &PyDictIterValue_Type || kind == &PyDictIterItem_Type)
        return &((DictIterator *)value)->left;
    if (kind == set_iterator) return &((SetIterator *)value)->left;
    PyErr_Format(PyExc_TypeError, "an iterator over a dict or set, not a %s", kind->tp_name);
    return NULL;
}

/* Items of the set before entry `until`: as many steps of another iterator. -1: an error. */
static Py_ssize_t passed_in_set(PyObject *set, Py_ssize_t until) {
    SizedIterator *other = (SizedIterator *)PyObject_GetIter(set);
    if (!other) return -1;
    Py_ssize_t passed = 0;
    PyObject *item;
    while ((item = PyIter_Next((PyObject *)other)) && other->at <= until) {
        Py_DECREF(item);
        passed++;
    }
    Py_XDECREF(item);
    Py_DECREF(other);
    return PyErr_Occurred() ? -1 : passed;
}

static Py_ssize_t passed_in_dict(PyObject *dict, Py_ssize_t until) {
    Py_ssize_t at = 0, passed = 0;
    while (PyDict_Next(dict, &at, NULL, NULL) && at <= until) passed++;
    return passed;
}

static PyObject *iterator_place(PyObject *module, PyObject *value) {
    const Py_ssize_t *left = left_of(value);
    if (!left) return NULL;
    const SizedIterator *self = (const SizedIterator *)value;
    if (!self->iterated) Py_RETURN_NONE;
    int in_set = Py_TYPE(value) == set_iterator;
    Py_ssize_t passed = in_set ? passed_in_set(self->iterated, self->at) : passed_in_dict(self->iterated, self->at);
    if (passed < 0) return NULL;
    return Py_BuildValue("(Onnn)", self->iterated, passed, self->used, *left);
}

static PyObject *put_iterator(PyObject *module, PyObject *args) {
    PyObject *value;
    Py_ssize_t passed, used, left, at = 0;
    if (!PyArg_ParseTuple(args, "Onnn", &value, &passed, &used, &left)) return NULL;
    Py_ssize_t *its_left = left_of(value);
    if (!its_left) return NULL;
    SizedIterator *self = (SizedIterator *)value;
    if (!self->iterated) return PyErr_Format(PyExc_ValueError, "this iterator is exhausted");
    if (Py_TYPE(value) == set_iterator) {
        if (passed > PySet_GET_SIZE(self->iterated)) passed = 0; /* it is to raise */
        while (passed-- > 0) {
            PyObject *item = PyIter_Next(value);
            if (!item) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
            Py_DECREF(item);
        }
    } else {
        while (passed-- > 0 && PyDict_Next(self->iterated, &at, NULL, NULL));
        self->at = at;
    }
    self->used = used;
    *its_left = left;
    Py_RETURN_NONE;
}

int iterators_ready(void) {
    PyObject *set = PySet_New(NULL), *iterator = set ? PyObject_GetIter(set) : NULL;
    if (iterator) set_iterator = Py_TYPE(iterator);
    Py_XDECREF(iterator);
    Py_XDECREF(set);
    return iterator ? 0 : -1;
}

PyMethodDef iterators_methods[] = {
    {"iterator_place", iterator_place, METH_O,
     "iterator_place(iterator) -> (dict or set, items passed, items when it began, items left), None when exhausted"},
    {"put_iterator", put_iterator, METH_VARARGS,
     "put_iterator(iterator, passed, used, left): as `iterator_place` of another has told"},
    {NULL, NULL, 0, NULL},
};
