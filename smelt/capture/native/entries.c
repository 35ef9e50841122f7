/* Compiled versions per place. A place is a code object, whose versions hang on co_extra, or a ResumePoint.
 *
 * Code objects are not tracked by CPython's garbage collector: what a place held would be a root for it. So a place
 * borrows the versions that have an owner. The owner holds them, and they leave their place when they die. Versions that
 * are anybody's are held by their place, and live until it dies or `clear`. */
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
static Place *places; /* all of them, for clear_all */

/* -- places ------------------------------------------------------------------------------------ */
void place_link(Place *place) {
    place->next = places;
    if (places) places->previous = place;
    places = place;
}

void place_unlink(Place *place) {
    if (place->next) place->next->previous = place->previous;
    if (place->previous) place->previous->next = place->next;
    else if (places == place) places = place->next;
    place->previous = place->next = NULL;
}

/* Forget all versions. Decref last: what dies may run code that looks at this place. */
void place_clear(Place *place) {
    Entry **entries = place->entries;
    Py_ssize_t count = place->count, held = 0;
    place->entries = NULL;
    place->count = place->room = 0;
    place->generation++;
    for (Py_ssize_t i = 0; i < count; i++) {
        entries[i]->place = NULL;
        if (!entries[i]->borrowed) entries[held++] = entries[i]; /* a borrowed one may die with one of these */
    }
    for (Py_ssize_t i = 0; i < held; i++) Py_DECREF(entries[i]);
    PyMem_Free(entries);
}

static void place_free(void *memory) {
    Place *place = memory;
    if (!place) return;
    place_unlink(place);
    place_clear(place);
    PyMem_Free(place);
}

Place *place_find(PyObject *code) {
    void *place = NULL;
    GET_EXTRA(code, extra, &place);
    return place;
}

Py_ssize_t argument_slots(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

/* The place of a code, made if need be; NULL with an exception when out of memory. */
Place *place_make(PyCodeObject *code) {
    Place *place = place_find((PyObject *)code);
    if (place) return place;
    place = PyMem_Calloc(1, sizeof(Place));
    if (!place) return (Place *)PyErr_NoMemory();
    place->arity = argument_slots(code);
    place->code = code;
    if (SET_EXTRA((PyObject *)code, extra, place) < 0) {
        PyMem_Free(place);
        return NULL;
    }
    place_link(place);
    return place;
}

static Py_ssize_t place_index(Place *place, Entry *entry) {
    for (Py_ssize_t i = 0; i < place->count; i++)
        if (place->entries[i] == entry) return i;
    return -1;
}

static void entry_remove(Entry *entry) {
    Place *place = entry->place;
    Py_ssize_t index = place ? place_index(place, entry) : -1;
    if (index < 0) return;
    place->count--;
    place->generation++;
    memmove(place->entries + index, place->entries + index + 1, (size_t)(place->count - index) * sizeof(Entry *));
    entry->place = NULL;
    if (!entry->borrowed) Py_DECREF(entry);
}

static int place_append(Place *place, Entry *entry) {
    if (place->count == place->room) {
        Py_ssize_t room = place->room ? 2 * place->room : 4;
        Entry **entries = PyMem_Realloc(place->entries, (size_t)room * sizeof(Entry *));
        if (!entries) return PyErr_NoMemory(), -1;
        place->entries = entries;
        place->room = room;
    }
    if (!entry->borrowed) Py_INCREF(entry);
    place->entries[place->count++] = entry;
    place->generation++;
    entry->place = place;
    return 0;
}

static void move_to_front(Place *place, Py_ssize_t index) {
    Entry *entry = place->entries[index];
    memmove(place->entries + 1, place->entries, (size_t)index * sizeof(Entry *));
    place->entries[0] = entry;
}

/* The first version whose guards hold. HIT: new references to the entry and to what its guards fetched. */
enum Outcome place_lookup(Place *place, const Scope *scope, Entry **found, PyObject **outputs) {
    PyObject *owner = stack_now()->owner;
    for (Py_ssize_t i = 0; i < place->count;) {
        Entry *entry = place->entries[i];
        if (entry->owner && entry->owner != owner) {
            i++;
            continue;
        }
        unsigned long generation = place->generation;
        Py_INCREF(entry);
        enum Outcome outcome = entry->guards ? guards_evaluate(entry->guards, scope, outputs) : DEAD;
        if (outcome == HIT) {
            if (i && place->generation == generation) move_to_front(place, i);
            entry->hits++;
            *found = entry;
            return HIT;
        }
        if (outcome == DEAD) entry_remove(entry);
        else i++; /* if the list changed meanwhile, one may not be tried this time: a miss, never a wrong hit */
        Py_DECREF(entry);
        if (outcome == RAISED) return RAISED;
    }
    return MISS;
}

/* -- Entry ------------------------------------------------------------------------------------- */
PyObject *entry_function(Entry *entry, PyObject *globals) {
    if (!entry->function || PyFunction_GET_GLOBALS(entry->function) != globals) {
        PyObject *function = PyFunction_New((PyObject *)entry->replacement, globals);
        if (!function) return NULL;
        Py_XSETREF(entry->function, function);
    }
    return entry->function;
}

static int entry_traverse(Entry *self, visitproc visit, void *arg) {
    Py_VISIT(self->guards);
    Py_VISIT(self->constants);
    Py_VISIT(self->owner);
    Py_VISIT(self->function);
    return 0;
}

static int entry_clear(Entry *self) {
    entry_remove(self);
    Py_CLEAR(self->guards);
    Py_CLEAR(self->constants);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->function);
    return 0;
}

static void entry_dealloc(Entry *self) {
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

static PyObject *entry_remove_method(Entry *self, PyObject *unused) {
    entry_remove(self);
    Py_RETURN_NONE;
}

static PyObject *entry_alive(Entry *self, void *unused) { return PyBool_FromLong(self->place != NULL); }

static PyObject *entry_repr(Entry *self) {
    return PyUnicode_FromFormat("<Entry of %U, %llu hits%s>", self->replacement->co_name, self->hits,
                                self->place ? "" : ", removed");
}

static PyMethodDef entry_own_methods[] = {
    {"remove", (PyCFunction)entry_remove_method, METH_NOARGS, "drop this version only"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef entry_members[] = {
    {"guards", T_OBJECT, offsetof(Entry, guards), READONLY, NULL},
    {"replacement", T_OBJECT, offsetof(Entry, replacement), READONLY, NULL},
    {"constants", T_OBJECT, offsetof(Entry, constants), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef entry_getset[] = {
    {"alive", (getter)entry_alive, NULL, "False once removed or cleared", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.Entry",
    .tp_doc = "One compiled version of a place. Made by add_entry.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_repr = (reprfunc)entry_repr,
    .tp_methods = entry_own_methods,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
};

/* -- module functions -------------------------------------------------------------------------- */
/* The place of a code or resume point; made if `make`. NULL without an exception: there is none yet. */
static Place *place_of(PyObject *object, int make) {
    if (PyObject_TypeCheck(object, &ResumePointType)) return &((ResumePoint *)object)->place;
    if (PyCode_Check(object)) return make ? place_make((PyCodeObject *)object) : place_find(object);
    PyErr_Format(PyExc_TypeError, "expected a code object or a ResumePoint, got %s", Py_TYPE(object)->tp_name);
    return NULL;
}

static int is_flat(Place *place, PyCodeObject *code) {
    const int generator = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    int flags = place->code ? place->code->co_flags : 0;
    if (code->co_nfreevars || code->co_kwonlyargcount || code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))
        PyErr_Format(PyExc_ValueError,
                     "%U is not flat: it has *args, **kwargs, keyword-only arguments or free variables", code->co_name);
    else if (code->co_argcount != place->arity + 2)
        PyErr_Format(PyExc_ValueError, "%U takes %d arguments, its place passes %zd slots and _c and _f", code->co_name,
                     code->co_argcount, place->arity);
    else if (code->co_flags & generator && (code->co_flags ^ flags) & generator)
        /* CPython decides by the function's own code which kind of generator to make */
        PyErr_Format(PyExc_ValueError, "%U is a generator, the original is none of this kind", code->co_name);
    else return 1;
    return 0;
}

static PyObject *add_entry(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count < 4 || count > 5 || Py_TYPE(args[1]) != &GuardsType || !PyCode_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "add_entry wants (place, Guards, code, constants, owner=None)");
    Place *place = place_of(args[0], 1);
    PyCodeObject *code = (PyCodeObject *)args[2];
    if (!place || !is_flat(place, code)) return NULL;
    if (guards_slot_bound(args[1]) > place->arity)
        return PyErr_Format(PyExc_ValueError, "the guards read slot %zd of %zd", guards_slot_bound(args[1]) - 1,
                            place->arity);
    Place *pinned = place_make(code);
    Entry *entry = pinned ? PyObject_GC_New(Entry, &EntryType) : NULL;
    if (!entry) return NULL;
    pinned->skipped = PINNED;
    *entry = (Entry){.ob_base = entry->ob_base, .guards = Py_NewRef(args[1]), .constants = Py_NewRef(args[3])};
    entry->replacement = (PyCodeObject *)Py_NewRef(args[2]);
    if (count == 5 && args[4] != Py_None) entry->owner = Py_NewRef(args[4]);
    entry->borrowed = entry->owner != NULL;
    PyObject_GC_Track(entry);
    if (place_append(place, entry) < 0) Py_CLEAR(entry);
    else if (place->code) frame_reserve(place->code, code);
    return (PyObject *)entry;
}

static PyObject *skip(PyObject *module, PyObject *object) {
    Place *place = place_of(object, 1);
    if (!place) return NULL;
    if (!place->skipped) place->skipped = SKIPPED;
    Py_RETURN_NONE;
}

static PyObject *quiet(PyObject *module, PyObject *code) {
    if (!PyCode_Check(code)) return PyErr_Format(PyExc_TypeError, "quiet wants a code object");
    Place *place = place_make((PyCodeObject *)code);
    if (!place) return NULL;
    place->skipped = QUIET;
    Py_RETURN_NONE;
}

static PyObject *is_skipped(PyObject *module, PyObject *object) {
    Place *place = place_of(object, 0);
    return place || !PyErr_Occurred() ? PyBool_FromLong(place && place->skipped) : NULL;
}

static void forget(Place *place) {
    if (place->skipped == SKIPPED) place->skipped = NOT_SKIPPED;
    place_clear(place);
}

static PyObject *clear(PyObject *module, PyObject *object) {
    Place *place = place_of(object, 0);
    if (place) forget(place);
    else if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *clear_all(PyObject *module, PyObject *unused) {
    for (Place *place = places; place; place = place->next)
        if (place->skipped == SKIPPED) place->skipped = NOT_SKIPPED;
    /* what an entry frees may free places: start over after each one */
    for (Place *place = places; place;) {
        if (!place->count) {
            place = place->next;
            continue;
        }
        place_clear(place);
        place = places;
    }
    Py_RETURN_NONE;
}

static PyObject *entries(PyObject *module, PyObject *object) {
    Place *place = place_of(object, 0);
    if (!place && PyErr_Occurred()) return NULL;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && place && i < place->count; i++)
        if (PyList_Append(list, (PyObject *)place->entries[i]) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *argument_slots_method(PyObject *module, PyObject *code) {
    if (PyCode_Check(code)) return PyLong_FromSsize_t(argument_slots((PyCodeObject *)code));
    return PyErr_Format(PyExc_TypeError, "expected a code object, got %s", Py_TYPE(code)->tp_name);
}

int entries_ready(void) {
    extra = REQUEST_EXTRA(place_free);
    if (extra >= 0) return 0;
    PyErr_SetString(PyExc_ImportError, "smelt: all slots of PyCodeObject.co_extra are taken by other tools");
    return -1;
}

PyMethodDef entries_methods[] = {
    {"add_entry", METHOD(add_entry), METH_FASTCALL, 
     "add_entry(place, guards, replacement, constants, owner=None) -> Entry, which the owner has to hold"},
    {"skip", skip, METH_O, "skip(place): never look at it again until clear"},
    {"quiet", quiet, METH_O, "quiet(code): its frames and all that they call run as they are, for ever"},
    {"is_skipped", is_skipped, METH_O, "is_skipped(place) -> bool"},
    {"clear", clear, METH_O, "clear(place): forget its entries and its skip mark"},
    {"clear_all", clear_all, METH_NOARGS, "clear every place"},
    {"entries", entries, METH_O, "entries(place) -> list of Entry, in the order tried"},
    {"argument_slots", argument_slots_method, METH_O, "argument_slots(code) -> int"},
    {NULL, NULL, 0, NULL},
};
