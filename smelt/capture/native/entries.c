/* Cache entries per compile site. A site is a code object, whose entries are stored in its co_extra, or a ResumePoint.
 * CPython's garbage collector does not track code objects, so it could not free a cycle through a strong reference
 * from a site to an entry. Therefore a site borrows the entries that have an owner: the owner keeps them alive, and
 * they leave their site when they are freed. A site owns the entries without an owner, until it is freed or cleared. */
#include "native.h"
#include <structmember.h>

#if PY_VERSION_HEX >= 0x030c0000
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#define REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#else
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#define REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#endif

static Py_ssize_t extra = -1;
static CompileSite *sites; /* all sites, for clear_all */

/* -- sites ------------------------------------------------------------------------------------ */
void site_link(CompileSite *site) {
    site->next = sites;
    if (sites) sites->previous = site;
    sites = site;
}

void site_unlink(CompileSite *site) {
    if (site->next) site->next->previous = site->previous;
    if (site->previous) site->previous->next = site->next;
    else if (sites == site) sites = site->next;
    site->previous = site->next = NULL;
}

/* Removes all entries of a site. Their references are released last, since destructors may run code that uses the
 * site. */
void site_clear(CompileSite *site) {
    CacheEntry **entries = site->entries;
    Py_ssize_t count = site->count, owned = 0;
    site->entries = NULL;
    site->count = site->room = 0;
    site->generation++;
    for (Py_ssize_t i = 0; i < count; i++) {
        entries[i]->site = NULL;
        /* do not use borrowed entries below: the release of an owned entry may free them */
        if (!entries[i]->borrowed) entries[owned++] = entries[i];
    }
    for (Py_ssize_t i = 0; i < owned; i++) Py_DECREF(entries[i]);
    PyMem_Free(entries);
}

static void site_free(void *memory) {
    CompileSite *site = memory;
    if (!site) return;
    site_unlink(site);
    site_clear(site);
    PyMem_Free(site);
}

CompileSite *site_find(PyObject *code) {
    void *site = NULL;
    GET_EXTRA(code, extra, &site);
    return site;
}

Py_ssize_t argument_slots(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

/* The site of a code object, which is made at the first request; NULL with an exception when out of memory. */
CompileSite *site_make(PyCodeObject *code) {
    CompileSite *site = site_find((PyObject *)code);
    if (site) return site;
    site = PyMem_Calloc(1, sizeof(CompileSite));
    if (!site) return (CompileSite *)PyErr_NoMemory();
    site->arity = argument_slots(code);
    site->code = code;
    if (SET_EXTRA((PyObject *)code, extra, site) < 0) {
        PyMem_Free(site);
        return NULL;
    }
    site_link(site);
    return site;
}

static Py_ssize_t entry_index(CompileSite *site, CacheEntry *entry) {
    for (Py_ssize_t i = 0; i < site->count; i++)
        if (site->entries[i] == entry) return i;
    return -1;
}

static void entry_remove(CacheEntry *entry) {
    CompileSite *site = entry->site;
    Py_ssize_t index = site ? entry_index(site, entry) : -1;
    if (index < 0) return;
    site->count--;
    site->generation++;
    memmove(site->entries + index, site->entries + index + 1, (size_t)(site->count - index) * sizeof(CacheEntry *));
    entry->site = NULL;
    if (!entry->borrowed) Py_DECREF(entry);
}

static int site_append(CompileSite *site, CacheEntry *entry) {
    if (site->count == site->room) {
        Py_ssize_t room = site->room ? 2 * site->room : 4;
        CacheEntry **entries = PyMem_Realloc(site->entries, (size_t)room * sizeof(CacheEntry *));
        if (!entries) return PyErr_NoMemory(), -1;
        site->entries = entries;
        site->room = room;
    }
    if (!entry->borrowed) Py_INCREF(entry);
    site->entries[site->count++] = entry;
    site->generation++;
    entry->site = site;
    return 0;
}

static void move_to_front(CompileSite *site, Py_ssize_t index) {
    CacheEntry *entry = site->entries[index];
    memmove(site->entries + 1, site->entries, (size_t)index * sizeof(CacheEntry *));
    site->entries[0] = entry;
}

/* Finds the first entry whose guards hold. At a HIT, the results are new references to the entry and to the values
 * that its guards fetched. */
enum Outcome site_lookup(CompileSite *site, const Scope *scope, CacheEntry **found, PyObject **outputs) {
    PyObject *owner = stack_now()->owner;
    for (Py_ssize_t i = 0; i < site->count;) {
        CacheEntry *entry = site->entries[i];
        if (entry->owner && entry->owner != owner) {
            i++;
            continue;
        }
        unsigned long generation = site->generation;
        Py_INCREF(entry);
        enum Outcome outcome = entry->guards ? guards_evaluate(entry->guards, scope, outputs) : DEAD;
        if (outcome == HIT) {
            if (i && site->generation == generation) move_to_front(site, i);
            entry->hits++;
            *found = entry;
            return HIT;
        }
        if (outcome == DEAD) entry_remove(entry);
        else i++; /* if guards changed the list, an entry may be skipped: a miss, but never a wrong hit */
        Py_DECREF(entry);
        if (outcome == RAISED) return RAISED;
    }
    return MISS;
}

/* -- CacheEntry ------------------------------------------------------------------------------------- */
PyObject *entry_function(CacheEntry *entry, PyObject *globals) {
    if (!entry->function || PyFunction_GET_GLOBALS(entry->function) != globals) {
        PyObject *function = PyFunction_New((PyObject *)entry->replacement, globals);
        if (!function) return NULL;
        Py_XSETREF(entry->function, function);
    }
    return entry->function;
}

static int entry_traverse(CacheEntry *self, visitproc visit, void *arg) {
    Py_VISIT(self->guards);
    Py_VISIT(self->constants);
    Py_VISIT(self->owner);
    Py_VISIT(self->function);
    return 0;
}

static int entry_clear(CacheEntry *self) {
    entry_remove(self);
    Py_CLEAR(self->guards);
    Py_CLEAR(self->constants);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->function);
    return 0;
}

static void entry_dealloc(CacheEntry *self) {
    PyObject_GC_UnTrack(self);
    entry_remove(self);
    if (self->weakrefs) PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->guards);
    Py_CLEAR(self->constants);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->function);
    Py_CLEAR(self->replacement);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *entry_remove_method(CacheEntry *self, PyObject *unused) {
    entry_remove(self);
    Py_RETURN_NONE;
}

static PyObject *entry_alive(CacheEntry *self, void *unused) { return PyBool_FromLong(self->site != NULL); }

static PyObject *entry_repr(CacheEntry *self) {
    return PyUnicode_FromFormat("<Entry of %U, %llu hits%s>", self->replacement->co_name, self->hits,
                                self->site ? "" : ", removed");
}

static PyMethodDef entry_own_methods[] = {
    {"remove", (PyCFunction)entry_remove_method, METH_NOARGS, "drop this entry only"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef entry_members[] = {
    {"guards", T_OBJECT, offsetof(CacheEntry, guards), READONLY, NULL},
    {"replacement", T_OBJECT, offsetof(CacheEntry, replacement), READONLY, NULL},
    {"constants", T_OBJECT, offsetof(CacheEntry, constants), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(CacheEntry, hits), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef entry_getset[] = {
    {"alive", (getter)entry_alive, NULL, "False once removed or cleared", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject CacheEntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.Entry",
    .tp_doc = "One cache entry of a compile site. Made by add_entry.",
    .tp_basicsize = sizeof(CacheEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_repr = (reprfunc)entry_repr,
    .tp_methods = entry_own_methods,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_weaklistoffset = offsetof(CacheEntry, weakrefs),
};

/* -- module functions -------------------------------------------------------------------------- */
/* The site of a code object or resume point, which is made if `make` is set and it has none. NULL without an exception
 * if the object has no site. */
static CompileSite *site_of(PyObject *object, int make) {
    if (PyObject_TypeCheck(object, &ResumePointType)) return &((ResumePoint *)object)->site;
    if (PyCode_Check(object)) return make ? site_make((PyCodeObject *)object) : site_find(object);
    PyErr_Format(PyExc_TypeError, "expected a code object or a ResumePoint, got %s", Py_TYPE(object)->tp_name);
    return NULL;
}

static int is_flat(CompileSite *site, PyCodeObject *code) {
    const int generator = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    int flags = site->code ? site->code->co_flags : 0;
    if (code->co_nfreevars || code->co_kwonlyargcount || code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))
        PyErr_Format(PyExc_ValueError,
                     "%U is not flat: it has *args, **kwargs, keyword-only arguments or free variables", code->co_name);
    else if (code->co_argcount != site->arity + 2)
        PyErr_Format(PyExc_ValueError, "%U takes %d arguments, its site passes %zd slots and _c and _f", code->co_name,
                     code->co_argcount, site->arity);
    else if (code->co_flags & generator && (code->co_flags ^ flags) & generator)
        /* CPython chooses the kind of generator by the function's own code */
        PyErr_Format(PyExc_ValueError, "%U is a generator, the original is none of this kind", code->co_name);
    else return 1;
    return 0;
}

static PyObject *add_entry(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count < 4 || count > 5 || Py_TYPE(args[1]) != &GuardsType || !PyCode_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "add_entry wants (site, Guards, code, constants, owner=None)");
    CompileSite *site = site_of(args[0], 1);
    PyCodeObject *code = (PyCodeObject *)args[2];
    if (!site || !is_flat(site, code)) return NULL;
    if (guards_slot_bound(args[1]) > site->arity)
        return PyErr_Format(PyExc_ValueError, "the guards read slot %zd of %zd", guards_slot_bound(args[1]) - 1,
                            site->arity);
    CompileSite *pinned = site_make(code);
    CacheEntry *entry = pinned ? PyObject_GC_New(CacheEntry, &CacheEntryType) : NULL;
    if (!entry) return NULL;
    pinned->skipped = PINNED;
    *entry = (CacheEntry){.ob_base = entry->ob_base, .guards = Py_NewRef(args[1]), .constants = Py_NewRef(args[3])};
    entry->replacement = (PyCodeObject *)Py_NewRef(args[2]);
    if (count == 5 && args[4] != Py_None) entry->owner = Py_NewRef(args[4]);
    entry->borrowed = entry->owner != NULL;
    PyObject_GC_Track(entry);
    if (site_append(site, entry) < 0) Py_CLEAR(entry);
    else if (site->code) frame_reserve(site->code, code);
    return (PyObject *)entry;
}

static PyObject *skip(PyObject *module, PyObject *object) {
    CompileSite *site = site_of(object, 1);
    if (!site) return NULL;
    if (!site->skipped) site->skipped = SKIPPED;
    Py_RETURN_NONE;
}

static PyObject *quiet(PyObject *module, PyObject *code) {
    if (!PyCode_Check(code)) return PyErr_Format(PyExc_TypeError, "quiet wants a code object");
    CompileSite *site = site_make((PyCodeObject *)code);
    if (!site) return NULL;
    site->skipped = QUIET;
    Py_RETURN_NONE;
}

static PyObject *is_skipped(PyObject *module, PyObject *object) {
    CompileSite *site = site_of(object, 0);
    return site || !PyErr_Occurred() ? PyBool_FromLong(site && site->skipped) : NULL;
}

static void forget(CompileSite *site) {
    if (site->skipped == SKIPPED) site->skipped = NOT_SKIPPED;
    site_clear(site);
}

static PyObject *clear(PyObject *module, PyObject *object) {
    CompileSite *site = site_of(object, 0);
    if (site) forget(site);
    else if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *clear_all(PyObject *module, PyObject *unused) {
    for (CompileSite *site = sites; site; site = site->next)
        if (site->skipped == SKIPPED) site->skipped = NOT_SKIPPED;
    /* freeing an entry may free sites, so the loop starts over after each entry */
    for (CompileSite *site = sites; site;) {
        if (!site->count) {
            site = site->next;
            continue;
        }
        site_clear(site);
        site = sites;
    }
    Py_RETURN_NONE;
}

static PyObject *entries(PyObject *module, PyObject *object) {
    CompileSite *site = site_of(object, 0);
    if (!site && PyErr_Occurred()) return NULL;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && site && i < site->count; i++)
        if (PyList_Append(list, (PyObject *)site->entries[i]) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *argument_slots_method(PyObject *module, PyObject *code) {
    if (PyCode_Check(code)) return PyLong_FromSsize_t(argument_slots((PyCodeObject *)code));
    return PyErr_Format(PyExc_TypeError, "expected a code object, got %s", Py_TYPE(code)->tp_name);
}

int entries_ready(void) {
    extra = REQUEST_EXTRA(site_free);
    if (extra >= 0) return 0;
    PyErr_SetString(PyExc_ImportError, "smelt: all slots of PyCodeObject.co_extra are taken by other tools");
    return -1;
}

PyMethodDef entries_methods[] = {
    {"add_entry", METHOD(add_entry), METH_FASTCALL, 
     "add_entry(site, guards, replacement, constants, owner=None) -> Entry, which the owner has to keep alive"},
    {"skip", skip, METH_O, "skip(site): ignore its frames until clear"},
    {"quiet", quiet, METH_O, "quiet(code): its frames and all that they call run uncompiled, for ever"},
    {"is_skipped", is_skipped, METH_O, "is_skipped(site) -> bool"},
    {"clear", clear, METH_O, "clear(site): forget its entries and its skip mark"},
    {"clear_all", clear_all, METH_NOARGS, "clear every site"},
    {"entries", entries, METH_O, "entries(site) -> list of Entry, in the order tried"},
    {"argument_slots", argument_slots_method, METH_O, "argument_slots(code) -> int"},
    {NULL, NULL, 0, NULL},
};
