/* The compiled forms of Guards, shared by guards.c, steps.c, program.c and evaluate.c.
 *
 * steps.c compiles fetches and checks one to one. program.c makes a shorter program of them: what is read from one dict
 * or class is a Memo, which holds as long as CPython's version of that dict or class is the one it was last read at. */
#ifndef SMELT_CAPTURE_GUARDS_H
#define SMELT_CAPTURE_GUARDS_H

#include "shortcuts.h"

/* Order is the number that Python sees. Roots come first. */
#define FETCH_KINDS(X)                                                                                                 \
    X(LOCAL) X(GLOBALS) X(GLOBAL) X(BUILTINS) X(FUNC) X(CLOSURE) X(CLOSURE_CELL) X(CONST) X(WEAK) X(ATTR) X(TYPE_ATTR) \
    X(CLASS_ATTR) X(INSTANCE_DICT) X(DICT_ITEM) X(DICT_ITEM_OR_MISSING) X(LIST_ITEM) X(TUPLE_ITEM) X(TYPE) X(CELL)     \
    X(MODULE_MEMBER) X(SIZE) X(CALL) X(FUNCTION_FIELD) X(SLOT) X(DICT_VALUE)
#define CHECK_KINDS(X)                                                                                                 \
    X(IS) X(IS_NOT) X(TYPE_IS) X(EQ) X(LEN) X(RANGE) X(DICT_KEYS) X(HAS_KEY) X(NOT_KEY) X(MISSING) X(WEAK_IS)          \
    X(TENSOR) X(ALIASED) X(NOT_ALIASED) X(NONE_ALIASED) X(STATE) X(MODULE) X(PYTHON) X(FUNCTION) X(NO_FINALIZER)

#define AS_FETCH(name) F_##name,
#define AS_CHECK(name) C_##name,
enum FetchKind { FETCH_KINDS(AS_FETCH) FETCH_COUNT };
enum CheckKind { CHECK_KINDS(AS_CHECK) CHECK_COUNT };
enum { LAST_ROOT = F_WEAK, NO_HINT = -1 };

typedef struct {
    uint8_t kind;
    uint16_t checks; /* how many checks follow this fetch */
    int32_t parent;
    int32_t dict_at;           /* index in the values of this value's __dict__, for its members; 0: none */
    int32_t hint, second_hint; /* last positions of key and second in their dicts (dicts.h) */
    PyObject *key;             /* borrowed from Guards.fetches */
    /* MODULE_MEMBER: the member's name; SIZE: set when the parent's metadata may be read raw; SLOT: value of an empty
     * slot */
    PyObject *second;
    Py_hash_t hash;   /* of key, where it is looked up in a dict (MODULE_MEMBER: of second) */
    /* LOCAL, CLOSURE, LIST_ITEM, TUPLE_ITEM, DICT_VALUE, SIZE: index; FUNCTION_FIELD, SLOT: offset; MODULE_MEMBER: the
     * parent's dict_at */
    Py_ssize_t index;
} FetchStep;

typedef struct {
    uint8_t kind;
    int32_t given;     /* position in Guards.checks */
    PyObject *operand; /* borrowed from Guards.checks */
    Py_ssize_t number; /* LEN, ALIASED, NOT_ALIASED; RANGE: low; MODULE: 0, 1 or -1 for any */
    Py_ssize_t high;   /* RANGE; hash of HAS_KEY, NOT_KEY; MODULE: the value's dict_at */
    Shortcut *shortcut; /* owned. PYTHON: tried first, if there is one */
    int32_t *numbers;  /* owned. NONE_ALIASED: the fetches; MODULE: hints for "training" and each name */
} CheckStep;

/* The keys of dicts that share them with all instances of a class; a key is only ever added. */
typedef struct {
    PyObject *type;   /* a weak reference: the keys live as long as the class, which may be a short-lived one */
    const void *keys;
    Py_ssize_t count;
} Shape;

/* A name looked up in a dict or class. */
typedef struct {
    PyObject *key; /* borrowed */
    Py_hash_t hash;
    int32_t hint;
    int32_t first, count; /* checks that hold as long as the same object is there */
    int32_t position;     /* in the values of an object with the memo's shape; -1: none */
    uint8_t required;     /* absence fails the guards */
    uint8_t hollow;       /* the value must be an empty dict, which is checked every time */
    PyObject *kept_alive; /* strong: the value, if a check compared its content and it could die */
} Item;

/* A value of an object's dict, and its position there. */
typedef struct {
    PyObject *value;
    Py_ssize_t position;
} Seen;

/* What the guards read from one dict (or class, if `is_class`). */
typedef struct {
    uint64_t version;   /* 0: not known */
    uint64_t confirmed; /* the stretch of an evaluation (evaluate.c) in which it was found current */
    uint64_t hollow_at; /* the count of writes to watched dicts at which the hollow ones were all empty; 0: never */
    int32_t first_item, item_count, hollow_count; /* hollow items come last */
    int32_t first_hollow;                         /* among the program's */
    int32_t seen_count; /* length in `seen`, from first_item on; -1: they do not decide whether the memo is current */
    uint8_t is_class;
    Shape shape; /* of a dict without a version */
} Memo;

/* One fetch of the program; fetches that a memo covers entirely have none. It is small, and its step, for when no memo
 * knows the value, is stored elsewhere: a program of a thousand nodes is out of the caches at every call. */
typedef struct {
    int32_t parent, at;   /* indices of values; parent: -1 for none */
    int32_t first, count; /* checks to make every time */
    int32_t item, of;     /* its item in its parent's memo, and that memo; -1 */
    int32_t memo;         /* the memo of its value; -1 */
    /* number of nodes from this one on that are consecutive items, all with the same tensor check; or 0 */
    int32_t run;
    uint8_t foreign;      /* its fetch or a check may run Python code, which may write to anything */
} Node;

/* Addresses of a node's last value: its object and, for a tensor, what it points to. They are only prefetched and never
 * read, since the objects may have died. */
typedef struct {
    const char *object, *implementation, *gradients;
} Lines;

typedef struct {
    Node *nodes;  /* with room for LOOK_AHEAD more */
    FetchStep *steps; /* as many as nodes */
    Lines *lines; /* as many as nodes, with room for twice LOOK_AHEAD more */
    Memo *memos;
    Item *items;
    PyObject **found; /* by item, its value at the memo's version; borrowed, NULL: absent */
    Seen *seen; /* as many as items */
    PyObject **hollow; /* values of the hollow items, memo by memo, with room for LOOK_AHEAD more */
    CheckStep *checks; /* grouped by node and item; `numbers` and `shortcut` borrowed from Guards.check_steps */
    int32_t node_count, memo_count, item_count, value_count;
    /* number of leading nodes: those that may run Python code or make objects, with all that they depend on */
    int32_t owned_count;
    unsigned long long renewed; /* how often a dict or class was reread */
} Program;

typedef struct {
    PyObject_HEAD
    PyObject *fetches, *checks, *outputs; /* as given, as tuples */
    Py_ssize_t fetch_count, check_count, output_count, slot_bound;
    Py_ssize_t value_count; /* fetch_count and one for each dict_at */
    FetchStep *fetch_steps;
    CheckStep *check_steps; /* those without a fetch first, then grouped by fetch */
    Py_ssize_t rootless;    /* how many have no fetch */
    int32_t *output_steps;
    Program program;
    int owning; /* some step runs Python code or makes objects: keep references to values that this may free */
} Guards;

extern PyObject *name_training; /* "training", hashed */
extern const char *const fetch_names[], *const check_names[];
int build_steps(Guards *guards, PyObject *fetches, PyObject *checks, PyObject *outputs); /* -1 with an exception */
void evaluate_ready(void);
int build_program(Guards *guards); /* -1 with an exception */
void free_program(Program *program);
int equal_constants(PyObject *value, PyObject *constant); /* 1, 0; -1 with an exception */
int fetch_is_foreign(const FetchStep *step);
int check_is_foreign(const CheckStep *step);
int is_plain_constant(PyObject *object);                  /* its == runs no Python code */
int is_immutable(PyObject *object);                       /* and it always equals the same objects */

#endif
