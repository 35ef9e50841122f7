/* The compiled forms of Guards, shared by guards.c, steps.c, program.c and evaluate.c.
 *
 * steps.c compiles each fetch and each check. program.c makes a shorter program of them, in which the reads of one
 * dict or class form a Memo. A memo is valid as long as CPython's version of the dict or class is unchanged since it
 * was last read. */
#ifndef SMELT_CAPTURE_GUARDS_H
#define SMELT_CAPTURE_GUARDS_H

#include "shortcuts.h"

/* Python uses the position in this list as the number of a kind. Roots come first. */
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
    uint16_t checks; /* number of checks that follow this fetch */
    int32_t parent;
    int32_t dict_at;           /* index in the values of this value's __dict__, for its members; 0: none */
    int32_t hint, second_hint; /* last positions of key and second in their dicts (dicts.h) */
    PyObject *key;             /* borrowed from Guards.fetches */
    /* MODULE_MEMBER: the member's name; SIZE: set if the parent's metadata may be read raw; SLOT: the value of an
     * empty slot */
    PyObject *second;
    Py_hash_t hash;   /* of key, if it is looked up in a dict (MODULE_MEMBER: of second) */
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
    Shortcut *shortcut; /* owned. PYTHON: tried before the function, unless NULL */
    int32_t *numbers;  /* owned. NONE_ALIASED: the fetches; MODULE: hints for "training" and each name */
} CheckStep;

/* The keys of dicts that share them with all instances of a class. Keys are added to them, but never removed. */
typedef struct {
    PyObject *type;   /* a weak reference: the keys live as long as the class, which may be freed early */
    const void *keys;
    Py_ssize_t count;
} Shape;

/* A name looked up in a dict or class. */
typedef struct {
    PyObject *key; /* borrowed */
    Py_hash_t hash;
    int32_t hint;
    int32_t first, count; /* checks that hold as long as the value is the same object */
    int32_t position;     /* position in the values of an object with the memo's shape; -1: none */
    uint8_t required;     /* whether the guards fail if the name is absent */
    uint8_t hollow;       /* whether the value must be an empty dict, which is checked at each evaluation */
    PyObject *kept_alive; /* strong: the value, if a check compared its content and it may be freed */
} Item;

/* A value of an object's dict, and its position in the dict. */
typedef struct {
    PyObject *value;
    Py_ssize_t position;
} Seen;

/* The items that the guards read from one dict, or from one class (`is_class`). */
typedef struct {
    uint64_t version;   /* 0: not known */
    uint64_t confirmed; /* the interval of an evaluation (see evaluate.c) in which it was found current */
    uint64_t hollow_at; /* the count of writes to watched dicts when all hollow items were empty; 0: never */
    int32_t first_item, item_count, hollow_count; /* hollow items come last */
    int32_t first_hollow;                         /* index among the program's hollow items */
    int32_t seen_count; /* number of values in `seen`, from first_item on; -1: the memo does not use them */
    uint8_t is_class;
    Shape shape; /* shape of a dict without a version */
} Memo;

/* One fetch of the program. Fetches that a memo covers entirely have no node. A node is small, because a program of a
 * thousand nodes has left the caches at every call; its step, which is used if no memo contains the value, is stored
 * elsewhere. */
typedef struct {
    int32_t parent, at;   /* indices of values; parent: -1 for none */
    int32_t first, count; /* checks to make at each evaluation */
    int32_t item, of;     /* its item in its parent's memo, and that memo; -1: none */
    int32_t memo;         /* the memo of its value; -1: none */
    /* number of nodes from this one on that are consecutive items, all with the same tensor check; or 0 */
    int32_t run;
    uint8_t foreign;      /* whether its fetch or a check may run Python code, which may write to any object */
} Node;

/* Addresses of a node's last value: of its object and, for a tensor, of the memory to which it points. They are only
 * prefetched and never read, since the objects may have been freed. */
typedef struct {
    const char *object, *implementation, *gradients;
} Lines;

typedef struct {
    Node *nodes;  /* with LOOK_AHEAD further elements */
    FetchStep *steps; /* as many as nodes */
    Lines *lines; /* as many as nodes, and 2 * LOOK_AHEAD further elements */
    Memo *memos;
    Item *items;
    PyObject **found; /* by item, its value at the memo's version; borrowed, NULL: absent */
    Seen *seen; /* as many as items */
    PyObject **hollow; /* values of the hollow items, memo by memo, with LOOK_AHEAD further elements */
    CheckStep *checks; /* grouped by node and item; `numbers` and `shortcut` borrowed from Guards.check_steps */
    int32_t node_count, memo_count, item_count, value_count;
    /* number of leading nodes: those that may run Python code or make objects, with all nodes on which they depend */
    int32_t owned_count;
    unsigned long long renewed; /* number of times that a dict or class was reread */
} Program;

typedef struct {
    PyObject_HEAD
    PyObject *fetches, *checks, *outputs; /* the given arguments, as tuples */
    Py_ssize_t fetch_count, check_count, output_count, slot_bound;
    Py_ssize_t value_count; /* fetch_count and one for each dict_at */
    FetchStep *fetch_steps;
    CheckStep *check_steps; /* checks without a fetch, then the other checks, grouped by fetch */
    Py_ssize_t rootless;    /* number of checks without a fetch */
    int32_t *output_steps;
    Program program;
    int owning; /* whether a step runs Python code or makes objects: then values that may be freed are owned */
} Guards;

extern PyObject *name_training; /* "training", hashed */
extern const char *const fetch_names[], *const check_names[];
int build_steps(Guards *guards, PyObject *fetches, PyObject *checks, PyObject *outputs); /* -1 with an exception */
void evaluate_ready(void);
int build_program(Guards *guards); /* -1 with an exception */
void free_program(Program *program);
int equal_constants(PyObject *value, PyObject *constant); /* whether they are equal; -1 with an exception */
int fetch_is_foreign(const FetchStep *step);
int check_is_foreign(const CheckStep *step);
int is_plain_constant(PyObject *object);                  /* whether its == runs no Python code */
int is_immutable(PyObject *object);                       /* whether, in addition, it always equals the same objects */

#endif
