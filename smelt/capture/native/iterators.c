/* Reads and sets the position of an iterator over a dict or set. Such an iterator raises an error when its dict or set
 * has changed size, so an iterator that outlives a capture must refer to the same object and know its size at the
 * start. `__reduce__` does not serve: it gives an iterator over a list of the remaining items. */
#include "native.h"

/* Layouts as in CPython's Objects/dictobject.c and Objects/setobject.c, 3.11 to 3.13. */
typedef struct {
    PyObject_HEAD
    PyObject *iterated; /* the dict or set; NULL when it is exhausted */
    Py_ssize_t used;    /* number of items when the iterator was made; -1 after it has raised an error */
    Py_ssize_t at;      /* index of the next entry to read */
} SizedIterator;

typedef struct {
    SizedIterator base;
    PyObject *result;
    Py_ssize_t left; /* items left */
} DictIterator;

typedef struct {
    SizedIterator base;
    Py_ssize_t left;
} SetIterator;

static PyTypeObject *set_iterator; /* a builtin type, which is never freed */

static Py_ssize_t *left_of(PyObject *value) {
    PyTypeObject *kind = Py_TYPE(value);
    if (kind == &PyDictIterKey_Type || kind == &PyDictIterValue_Type || kind == &PyDictIterItem_Type)
        return &((DictIterator *)value)->left;
    if (kind == set_iterator) return &((SetIterator *)value)->left;
    PyErr_Format(PyExc_TypeError, "an iterator over a dict or set, not a %s", kind->tp_name);
    return NULL;
}

/* Number of items of the set before entry `until`, counted with a second iterator. -1: an error. */
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

static PyObject *iterator_position(PyObject *module, PyObject *value) {
    const Py_ssize_t *left = left_of(value);
    if (!left) return NULL;
    const SizedIterator *self = (const SizedIterator *)value;
    if (!self->iterated) Py_RETURN_NONE;
    int in_set = Py_TYPE(value) == set_iterator;
    Py_ssize_t passed = in_set ? passed_in_set(self->iterated, self->at) : passed_in_dict(self->iterated, self->at);
    if (passed < 0) return NULL;
    return Py_BuildValue("(Onnn)", self->iterated, passed, self->used, *left);
}

static PyObject *set_iterator_position(PyObject *module, PyObject *args) {
    PyObject *value;
    Py_ssize_t passed, used, left, at = 0;
    if (!PyArg_ParseTuple(args, "Onnn", &value, &passed, &used, &left)) return NULL;
    Py_ssize_t *its_left = left_of(value);
    if (!its_left) return NULL;
    SizedIterator *self = (SizedIterator *)value;
    if (!self->iterated) return PyErr_Format(PyExc_ValueError, "this iterator is exhausted");
    if (Py_TYPE(value) == set_iterator) {
        if (passed > PySet_GET_SIZE(self->iterated)) passed = 0; /* the set has shrunk: the iterator then raises */
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
    {"iterator_position", iterator_position, METH_O,
     "iterator_position(iterator) -> (dict or set, items passed, size at its start, items left), None when exhausted"},
    {"set_iterator_position", set_iterator_position, METH_VARARGS,
     "set_iterator_position(iterator, passed, used, left): as `iterator_position` gave them for another"},
    {NULL, NULL, 0, NULL},
};
