/* Evaluation of one fetch: reads its value from its parent's value. Included by evaluate.c. */
#ifndef SMELT_CAPTURE_READS_H
#define SMELT_CAPTURE_READS_H

#include "dicts.h"

PyObject *dict_value(PyObject *dict, Py_ssize_t index);

static Py_NO_INLINE PyObject *slow_instance_dict(PyObject *object) {
    PyObject **where = _PyObject_GetDictPtr(object);
    if (!where) return NULL;
    if (!*where) {
        PyObject *made = PyObject_GenericGetDict(object, NULL);
        if (!made) return PyErr_Clear(), NULL;
        Py_DECREF(made); /* the object owns it */
    }
    return *where;
}

/* The __dict__ of an object, borrowed; NULL without an exception if it has none. */
static inline PyObject *instance_dict(PyObject *object) {
    if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyObject *dict = ((PyObject **)object)[-3]; /* before the object's head, on 3.11 to 3.13 */
        if (dict && !((uintptr_t)dict & 1)) return dict; /* 3.12 tags inline values for which no dict exists yet */
    }
    return slow_instance_dict(object);
}

/* The value of a key in a dict, borrowed; NULL with or without an exception. */
static inline PyObject *dict_item(PyObject *dict, PyObject *key, Py_hash_t hash, int32_t *hint) {
    return dict && PyDict_Check(dict) ? hinted_item(dict, key, hash, hint) : NULL;
}

/* the hash of an interned name, which was computed when the steps were built */
static inline Py_hash_t name_hash(PyObject *name) { return ((PyASCIIObject *)name)->hash; }

static inline PyObject *weak_target(PyObject *reference) {
    PyObject *target = ((PyWeakReference *)reference)->wr_object;
    return target != Py_None && Py_REFCNT(target) > 0 ? target : NULL;
}

static inline PyObject *cell_content(PyObject *cell) {
    if (!cell || !PyCell_Check(cell)) return NULL;
    PyObject *value = PyCell_GET(cell);
    return value ? value : smelt_null;
}

static inline PyObject *closure_cell(PyObject *func, Py_ssize_t index) {
    PyObject *closure = func && PyFunction_Check(func) ? PyFunction_GET_CLOSURE(func) : NULL;
    return closure && index < PyTuple_GET_SIZE(closure) ? PyTuple_GET_ITEM(closure, index) : NULL;
}

static inline PyObject *sequence_item(PyObject **items, Py_ssize_t size, Py_ssize_t index) {
    if (index < 0) index += size;
    return index >= 0 && index < size ? items[index] : NULL;
}

static inline PyObject *class_attribute(PyObject *class, PyObject *name) {
    PyObject *found = _PyType_Lookup((PyTypeObject *)class, name);
    return found ? found : smelt_null;
}

/* The value of a fetch. It is borrowed, except for the three kinds that make objects (`made` is set). NULL: the guards
   fail. */
static inline PyObject *fetch(FetchStep *step, PyObject *parent, PyObject **values, const Scope *scope, int *made) {
    PyObject *found;
    switch (step->kind) {
    case F_LOCAL:
        if (step->index >= scope->count) return NULL;
        found = scope->slots[step->index];
        return found ? found : smelt_null;
    case F_GLOBALS: return scope->globals;
    case F_GLOBAL:
        found = dict_item(scope->globals, step->key, step->hash, &step->hint);
        if (found || PyErr_Occurred()) return found;
        return dict_item(scope->builtins, step->key, step->hash, &step->second_hint);
    case F_BUILTINS: return scope->builtins;
    case F_FUNC: return scope->func;
    case F_CLOSURE: return cell_content(closure_cell(scope->func, step->index));
    case F_CLOSURE_CELL: return closure_cell(scope->func, step->index);
    case F_CONST: return step->key;
    case F_WEAK: return weak_target(step->key);
    case F_TYPE_ATTR: return class_attribute((PyObject *)Py_TYPE(parent), step->key);
    case F_CLASS_ATTR: return PyType_Check(parent) ? class_attribute(parent, step->key) : NULL;
    case F_INSTANCE_DICT: return instance_dict(parent);
    case F_DICT_ITEM: return dict_item(parent, step->key, step->hash, &step->hint);
    case F_DICT_ITEM_OR_MISSING:
        if (!PyDict_Check(parent)) return NULL;
        found = hinted_item(parent, step->key, step->hash, &step->hint);
        return found || PyErr_Occurred() ? found : smelt_null;
    case F_LIST_ITEM:
        if (!PyList_Check(parent)) return NULL;
        return sequence_item(((PyListObject *)parent)->ob_item, Py_SIZE(parent), step->index);
    case F_TUPLE_ITEM:
        if (!PyTuple_Check(parent)) return NULL;
        return sequence_item(((PyTupleObject *)parent)->ob_item, Py_SIZE(parent), step->index);
    case F_DICT_VALUE: return dict_value(parent, step->index);
    case F_TYPE: return (PyObject *)Py_TYPE(parent);
    case F_CELL: return cell_content(parent);
    case F_MODULE_MEMBER:
        found = dict_item(values[step->index], step->key, name_hash(step->key), &step->hint);
        return found ? dict_item(found, step->second, step->hash, &step->second_hint) : NULL;
    case F_FUNCTION_FIELD:
        if (!PyFunction_Check(parent)) return NULL;
        found = *(PyObject **)((char *)parent + step->index);
        return found ? found : Py_None;
    case F_SLOT:
        if (!PyObject_TypeCheck(parent, PyDescr_TYPE(step->key))) return NULL;
        found = *(PyObject **)((char *)parent + step->index);
        return found ? found : step->second;
    case F_ATTR: *made = 1; return PyObject_GetAttr(parent, step->key);
    case F_SIZE: *made = 1; return tensor_size(parent, step->index, step->second != NULL);
    case F_CALL: *made = 1; return PyObject_CallOneArg(step->key, parent);
    }
    Py_UNREACHABLE();
}

#endif
