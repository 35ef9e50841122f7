/* Reads of dicts with str keys at a stored position, as CPython's LOAD_ATTR_WITH_HINT makes them, at about a quarter
 * of the cost of hashing. Versions: numbers that identify one state of one dict or class. */
#ifndef SMELT_CAPTURE_DICTS_H
#define SMELT_CAPTURE_DICTS_H

#include "guards.h"

#undef _PyGC_FINALIZED /* on 3.12, this is the name of both a macro and a function */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* deprecated by 3.12's header, but still maintained */
#define Py_BUILD_CORE 1
#include <internal/pycore_dict.h>
#undef Py_BUILD_CORE

/* The version of a dict, or 0 if it has none. On 3.13, the version of a dict that shares its values with an object
 * does not change at all writes to attributes. */
static inline uint64_t dict_version(PyObject *dict) {
    if (!PyDict_Check(dict)) return 0;
#if PY_VERSION_HEX >= 0x030d0000
    if (((PyDictObject *)dict)->ma_values) return 0;
#endif
    return ((PyDictObject *)dict)->ma_version_tag;
}
#pragma GCC diagnostic pop

#if PY_VERSION_HEX >= 0x030d0000
/* The values of an object if its dict has `shape`, else NULL. */
static inline PyObject *const *shaped_values(const Shape *shape, PyObject *dict) {
    const PyDictObject *table = (PyDictObject *)dict;
    if (!shape->keys || !PyDict_Check(dict) || table->ma_keys != shape->keys || !table->ma_values) return NULL;
    /* the class was freed, and other keys may be at this address */
    if (((PyWeakReference *)shape->type)->wr_object == Py_None) return NULL;
    return table->ma_keys->dk_nentries == shape->count ? table->ma_values->values : NULL;
}

/* Position of `key` in a shape; -1: it has no such key. */
static inline int32_t position_in(const Shape *shape, PyObject *key) {
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES((PyDictKeysObject *)shape->keys);
    for (Py_ssize_t i = 0; i < shape->count; i++)
        if (entries[i].me_key == key || (entries[i].me_key && !PyUnicode_Compare(entries[i].me_key, key))) return (int32_t)i;
    return -1;
}

/* Sets the shape of `object`, whose dict is `dict`. The shape has no keys if the dict does not share them with the
 * class, or when out of memory. */
static inline void take_shape(Shape *shape, PyObject *object, PyObject *dict) {
    PyTypeObject *type = Py_TYPE(object);
    PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;
    int shared = type->tp_flags & Py_TPFLAGS_HEAPTYPE && ((PyHeapTypeObject *)type)->ht_cached_keys == keys;
    if (!((PyDictObject *)dict)->ma_values) shared = 0;
    Py_XSETREF(shape->type, shared ? PyWeakref_NewRef((PyObject *)type, NULL) : NULL); /* one for all shapes of a class */
    if (shared && !shape->type) PyErr_Clear(), shared = 0;
    shape->keys = shared ? keys : NULL;
    shape->count = shared ? keys->dk_nentries : 0;
}
#endif

enum { MAX_SCAN_ENTRIES = 64 };

/* The version of a class, which changes with every attribute of the class and of its bases; 0 if it has none at
 * present. */
static inline uint64_t class_version(const PyTypeObject *type) {
#if PY_VERSION_HEX >= 0x030d0000
    return type->tp_version_tag; /* a change sets it to 0; the flag below is not maintained on this version */
#else
    return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0;
#endif
}

/* Looks a key up by its hash and updates the hint. Borrowed; NULL with or without an exception. */
static Py_NO_INLINE PyObject *unhinted_item(PyObject *dict, PyObject *key, Py_hash_t hash, int32_t *hint) {
    PyObject *value = _PyDict_GetItem_KnownHash(dict, key, hash);
    PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;
    /* a long dict is scanned only once: if its order keeps changing, hashing is cheaper */
    if (!value || !PyUnicode_CheckExact(key) || !DK_IS_UNICODE(keys) || 
        (*hint != NO_HINT && keys->dk_nentries > MAX_SCAN_ENTRIES))
        return value;
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries; i++)
        if (entries[i].me_key == key) {
            *hint = (int32_t)i;
            break;
        }
    return value;
}

/* The value of `key` in a dict, by the hint if it is right. Borrowed; NULL with or without an exception. */
static inline PyObject *hinted_item(PyObject *dict, PyObject *key, Py_hash_t hash, int32_t *hint) {
    const PyDictObject *table = (PyDictObject *)dict;
    PyDictKeysObject *keys = table->ma_keys;
    Py_ssize_t at = *hint;
    if (DK_IS_UNICODE(keys) && (size_t)at < (size_t)keys->dk_nentries) {
        const PyDictUnicodeEntry *entry = &DK_UNICODE_ENTRIES(keys)[at];
        PyObject *value = table->ma_values ? table->ma_values->values[at] : entry->me_value;
        if (entry->me_key == key && value) return value;
    }
    return unhinted_item(dict, key, hash, hint);
}

#endif
