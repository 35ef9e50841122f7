/* Checks whether the items read from a dict or class are still current. Included by evaluate.c. There are three ways,
 * cheapest first: its version is unchanged (dicts, classes); the values that the guards read are the same objects (on
 * 3.13, dicts that share their values with an object have no version); all items are read and checked once more. */
#ifndef SMELT_CAPTURE_MEMOS_H
#define SMELT_CAPTURE_MEMOS_H

#include "checks.h"

/* -- writes to watched dicts ------------------------------------------------------------------- */
static uint64_t writes = 1; /* count of writes to watched dicts, including their deallocation */

#if PY_VERSION_HEX >= 0x030c0000
static int watcher = -1;

static int count_write(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    writes++;
    return 0;
}

/* Registers the watcher of dicts. If CPython has no free one, the sizes of hollow dicts are read at each evaluation. */
static void start_watching(void) {
    watcher = PyDict_AddWatcher(count_write);
    if (watcher < 0) PyErr_Clear();
}

/* Watches a dict; returns whether each later write to it is counted. */
static inline int watch(PyObject *dict) {
    if (watcher < 0 || ((PyDictObject *)dict)->ma_values) return 0; /* 3.13.0 misses writes through an object */
    if (PyDict_Watch(watcher, dict) == 0) return 1;
    PyErr_Clear();
    return 0;
}
#else
static void start_watching(void) {}
static inline int watch(PyObject *dict) { return 0; }
#endif

/* -- rereading --------------------------------------------------------------------------------- */
static inline uint64_t version_now(const Memo *memo, PyObject *object) {
    return memo->is_class ? class_version((PyTypeObject *)object) : dict_version(object);
}

static inline int item_holds(const Program *program, const Item *item, PyObject *value) {
    if (!value && item->required) return 0;
    if (item->hollow && !PyDict_Check(value)) return 0;
    if (!value) value = smelt_null;
    for (int32_t k = item->first; k < item->first + item->count; k++)
        if (holds(&program->checks[k], value, NULL) != 1) return 0;
    return 1;
}

/* Stores the values of the hollow items, which have just been read. */
static inline void see_hollow(const Program *program, const Memo *memo) {
    PyObject **found = program->found + memo->first_item + memo->item_count - memo->hollow_count;
    for (int32_t i = 0; i < memo->hollow_count; i++) program->hollow[memo->first_hollow + i] = found[i];
}

#if PY_VERSION_HEX >= 0x030d0000
/* Whether an item's checks hold as long as the value is the same object; keeps the value alive if that requires it. */
static inline int identity_decides(const Program *program, Item *item, PyObject *value) {
    int by_content = 0;
    for (int32_t k = item->first; k < item->first + item->count; k++) {
        const CheckStep *check = &program->checks[k];
        by_content |= check->kind == C_TYPE_IS || (check->kind == C_EQ && value != check->operand);
    }
    if (!by_content) return 1;
    if (!value || !is_immutable(value)) return 0; /* to keep the value alive must not keep other objects alive */
    if (item->kept_alive != value) Py_XSETREF(item->kept_alive, Py_NewRef(value));
    return 1;
}

/* Stores the values of a memo with a shape, which has just been found to hold. */
static inline void see(const Program *program, Memo *memo) {
    Seen *seen = program->seen + memo->first_item;
    Item *item = program->items + memo->first_item;
    PyObject **found = program->found + memo->first_item;
    int32_t count = 0;
    memo->seen_count = -1;
    for (int32_t i = 0; i < memo->item_count; i++, item++) {
        if (!identity_decides(program, item, found[i])) return;
        if (item->position >= 0) seen[count++] = (Seen){found[i], item->position};
    }
    memo->seen_count = count;
}

/* Whether the values are the objects that `see` has stored. */
static inline int is_as_seen(const Program *program, const Memo *memo, PyObject *dict) {
    PyObject *const *values = memo->seen_count >= 0 ? shaped_values(&memo->shape, dict) : NULL;
    if (!values) return 0;
    const Seen *seen = program->seen + memo->first_item;
    uintptr_t different = 0;
    for (int32_t i = 0; i < memo->seen_count; i++) different |= (uintptr_t)values[seen[i].position] ^ (uintptr_t)seen[i].value;
    return !different;
}

/* Reads the values of an object at their positions in the shape, and checks them. */
static inline int shape_holds(Program *program, Memo *memo, PyObject *dict) {
    PyObject *const *values = shaped_values(&memo->shape, dict);
    if (!values) return 0;
    memo->version = memo->hollow_at = 0; /* the items no longer belong to the dict with that version */
    memo->seen_count = -1;
    const Item *item = program->items + memo->first_item;
    PyObject **found = program->found + memo->first_item;
    for (int32_t i = 0; i < memo->item_count; i++, item++) {
        found[i] = item->position >= 0 ? values[item->position] : NULL;
        if (!item_holds(program, item, found[i])) return 0; /* `renew` will find that too */
    }
    see(program, memo);
    see_hollow(program, memo);
    return 1;
}
#endif

/* Rereads the memo's dict or class without Python code; returns whether its checks hold. `object` is the dict of
 * `owner`, or a class. */
static Py_NO_INLINE int renew(Program *program, Memo *memo, PyObject *owner, PyObject *object) {
    memo->version = memo->hollow_at = 0;
    memo->seen_count = -1;
    if (!memo->is_class && !PyDict_Check(object)) return 0;
    for (int32_t i = memo->first_item; i < memo->first_item + memo->item_count; i++) {
        Item *item = &program->items[i];
        PyObject *value = memo->is_class ? _PyType_Lookup((PyTypeObject *)object, item->key)
                                         : hinted_item(object, item->key, item->hash, &item->hint);
        program->found[i] = value;
        if ((!value && PyErr_Occurred()) || !item_holds(program, item, value)) return 0;
    }
    see_hollow(program, memo);
    memo->version = version_now(memo, object); /* the look-ups give a class a version */
#if PY_VERSION_HEX >= 0x030d0000
    if (!memo->version && !memo->is_class && owner) {
        take_shape(&memo->shape, owner, object);
        for (int32_t i = 0; memo->shape.keys && i < memo->item_count; i++) {
            Item *item = &program->items[memo->first_item + i];
            item->position = position_in(&memo->shape, item->key);
        }
        if (memo->shape.keys) see(program, memo);
    }
#endif
    return 1;
}

/* -- whether a memo is current ----------------------------------------------------------------- */
/* Whether every hollow dict is empty. */
static inline int is_hollow(const Program *program, Memo *memo) {
    if (!memo->hollow_count || memo->hollow_at == writes) return 1;
    PyObject *const *dict = program->hollow + memo->first_hollow;
    int watched = 1;
    for (int32_t i = 0; i < memo->hollow_count; i++, dict++) {
        __builtin_prefetch(dict[LOOK_AHEAD]);
        if (PyDict_GET_SIZE(*dict)) return 0;
        watched &= watch(*dict);
    }
    if (watched) memo->hollow_at = writes;
    return 1;
}

/* Whether the memo's items are the present items of `object`. */
static inline int is_current(const Program *program, const Memo *memo, PyObject *object) {
    if (memo->version && version_now(memo, object) == memo->version) return 1;
#if PY_VERSION_HEX >= 0x030d0000
    return is_as_seen(program, memo, object);
#else
    return 0;
#endif
}

static inline int memo_holds(Program *program, Memo *memo, PyObject *owner, PyObject *object) {
    if (is_current(program, memo, object)) return is_hollow(program, memo);
    program->renewed++;
#if PY_VERSION_HEX >= 0x030d0000
    if (shape_holds(program, memo, object)) return is_hollow(program, memo);
#endif
    return renew(program, memo, owner, object) && is_hollow(program, memo);
}

/* The value of a node in its parent's memo; NULL with `*known` set if the name is absent. */
static inline PyObject *recall(const Program *program, int32_t at, PyObject *parent, uint64_t now, int *known) {
    const Node *node = &program->nodes[at];
    const Memo *memo = &program->memos[node->of];
    *known = memo->confirmed == now || is_current(program, memo, parent);
    if (!*known) return NULL;
    PyObject *value = program->found[node->item];
    return value || program->steps[at].kind == F_DICT_ITEM ? value : smelt_null;
}

#endif
