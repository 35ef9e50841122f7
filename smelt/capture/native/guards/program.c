/* Compiles the steps of Guards to a Program: fetches in the order of evaluation, in which the reads of one dict or
 * class are combined in memos. Steps of kind MODULE_MEMBER and checks of kind MODULE become reads of the underlying
 * dicts, so that one memo serves all reads of a module's __dict__. */
#include "guards.h"

enum { NONE = -1 };

/* A fetch while the program is built. The given fetches come first, then those of intermediate dicts. */
typedef struct {
    FetchStep step;
    int32_t first_child, sibling;
    int32_t first_check; /* index in the given checks */
    int32_t item, memo;  /* its item in its parent's memo; the memo of its value */
    int32_t checks;      /* number of checks made at every evaluation */
    int32_t node;        /* its index in the program */
    uint8_t wanted;      /* whether its value is an output or the operand of a check */
} Draft;

typedef struct {
    Item item;
    int32_t memo, draft; /* draft: the fetch of this item, or NONE */
    int32_t next;        /* the memo's previous item */
    int32_t at;          /* its index in the program */
} DraftItem;

typedef struct {
    Memo memo;
    int32_t last, filled; /* index of its last item; number of items laid out */
} DraftMemo;

/* A check and its owner: a draft, an item, or neither if it has no fetch. */
typedef struct {
    CheckStep step;
    int32_t draft, item;
} AttachedCheck;

typedef struct {
    const Guards *guards;
    Draft *drafts;
    DraftItem *items;
    DraftMemo *memos;
    AttachedCheck *attached;
    int32_t *order; /* indices of the drafts that become nodes */
    int32_t count, given, item_count, memo_count, attached_count, node_count, owned_count;
} Builder;

/* -- drafts ------------------------------------------------------------------------------------ */
static int32_t new_draft(Builder *b, FetchStep step) {
    b->drafts[b->count] = (Draft){.step = step, .first_child = NONE, .sibling = NONE, .item = NONE, .memo = NONE};
    b->drafts[b->count].node = NONE;
    return b->count++;
}

static void adopt(Builder *b, int32_t child) {
    int32_t parent = b->drafts[child].step.parent;
    if (parent < 0) return;
    b->drafts[child].sibling = b->drafts[parent].first_child;
    b->drafts[parent].first_child = child;
}

static int same_key(PyObject *a, Py_hash_t hash_a, PyObject *b, Py_hash_t hash_b) {
    return a == b || (hash_a == hash_b && PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) && !PyUnicode_Compare(a, b));
}

/* The child of `parent` with this step, which is made at the first request. */
static int32_t child_of(Builder *b, int32_t parent, enum FetchKind kind, PyObject *key, Py_hash_t hash) {
    for (int32_t i = b->drafts[parent].first_child; i != NONE; i = b->drafts[i].sibling) {
        const FetchStep *step = &b->drafts[i].step;
        if (step->kind == kind && same_key(step->key, step->hash, key, hash)) return i;
    }
    FetchStep step = {.kind = (uint8_t)kind, .parent = parent, .hint = NO_HINT, .key = key, .hash = hash};
    int32_t made = new_draft(b, step);
    adopt(b, made);
    return made;
}

static int32_t dict_of(Builder *b, int32_t draft) { return child_of(b, draft, F_INSTANCE_DICT, Py_None, 0); }

static void draft_fetches(Builder *b) {
    int32_t first = (int32_t)b->guards->rootless;
    for (int32_t i = 0; i < b->given; i++) {
        const FetchStep *step = &b->guards->fetch_steps[i];
        new_draft(b, *step);
        b->drafts[i].first_check = first;
        first += step->checks;
        if (step->kind != F_MODULE_MEMBER) adopt(b, i);
    }
    for (int32_t i = 0; i < b->given; i++) {
        FetchStep member = b->drafts[i].step;
        if (member.kind != F_MODULE_MEMBER) continue;
        int32_t dict = dict_of(b, member.parent);
        int32_t table = child_of(b, dict, F_DICT_ITEM, member.key, PyObject_Hash(member.key));
        b->drafts[i].step = (FetchStep){.kind = F_DICT_ITEM, .parent = table, .hint = NO_HINT, .key = member.second,
                                        .hash = member.hash};
        adopt(b, i);
    }
}

/* -- memos ------------------------------------------------------------------------------------- */
static int is_class(const FetchStep *step) { return step->kind == F_CONST && PyType_Check(step->key); }

static int32_t memo_of(Builder *b, int32_t draft) {
    Draft *owner = &b->drafts[draft];
    if (owner->memo == NONE) {
        owner->memo = b->memo_count++;
        b->memos[owner->memo] = (DraftMemo){.memo = {.is_class = (uint8_t)is_class(&owner->step)}, .last = NONE};
    }
    return owner->memo;
}

/* The item `key` of a memo, which is made at the first request. */
static int32_t item_of(Builder *b, int32_t memo, PyObject *key, Py_hash_t hash) {
    for (int32_t i = b->memos[memo].last; i != NONE; i = b->items[i].next)
        if (same_key(b->items[i].item.key, b->items[i].item.hash, key, hash)) return i;
    DraftItem made = {.item = {.key = key, .hash = hash, .hint = NO_HINT}, .memo = memo, .draft = NONE};
    made.next = b->memos[memo].last;
    b->items[b->item_count] = made;
    return b->memos[memo].last = b->item_count++;
}

/* Whether the memo of the parent can contain the value that the step fetches. */
static int is_remembered(const Builder *b, const FetchStep *step) {
    if (step->parent < 0) return 0;
    const FetchStep *parent = &b->drafts[step->parent].step;
    if (step->kind == F_CLASS_ATTR) return is_class(parent);
    if (step->kind != F_DICT_ITEM && step->kind != F_DICT_ITEM_OR_MISSING) return 0;
    return PyUnicode_CheckExact(step->key) && !is_class(parent);
}

static void remember_fetches(Builder *b) {
    for (int32_t i = 0; i < b->count; i++) {
        const FetchStep *step = &b->drafts[i].step;
        if (!is_remembered(b, step)) continue;
        int32_t item = item_of(b, memo_of(b, step->parent), step->key, step->hash);
        if (step->kind == F_DICT_ITEM) b->items[item].item.required = 1;
        if (b->items[item].draft != NONE) continue; /* fetched twice, as DICT_ITEM and DICT_ITEM_OR_MISSING */
        b->items[item].draft = i;
        b->drafts[i].item = item;
    }
}

/* -- checks ------------------------------------------------------------------------------------ */
/* Whether a check that has held once holds for the same object at all later times. */
static int is_lasting(const CheckStep *step) {
    switch (step->kind) {
    case C_IS:
    case C_IS_NOT:
    case C_MISSING: return 1;
    case C_EQ: return is_immutable(step->operand);
    case C_TYPE_IS: /* instances of Python classes and modules can get another class */
        return ((PyTypeObject *)step->operand)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE &&
               step->operand != (PyObject *)&PyModule_Type;
    default: return 0;
    }
}

static void attach(Builder *b, CheckStep step, int32_t draft, int32_t item) {
    b->attached[b->attached_count++] = (AttachedCheck){step, draft, item};
    if (draft != NONE) b->drafts[draft].checks++;
    if (item != NONE) b->items[item].item.count++;
}

/* HAS_KEY and NOT_KEY become an item of the dict. */
static void attach_key_check(Builder *b, const CheckStep *step, int32_t draft) {
    int32_t item = item_of(b, memo_of(b, draft), step->operand, (Py_hash_t)step->high);
    CheckStep missing = {.kind = C_MISSING, .given = step->given, .operand = Py_None};
    if (step->kind == C_HAS_KEY) b->items[item].item.required = 1;
    else attach(b, missing, NONE, item);
}

/* MODULE becomes items of the instance's dict. */
static void attach_module_check(Builder *b, const CheckStep *step, int32_t draft) {
    int32_t memo = memo_of(b, dict_of(b, draft));
    if (step->number >= 0) {
        CheckStep same = {.kind = C_IS, .given = step->given, .operand = step->number ? Py_True : Py_False};
        int32_t item = item_of(b, memo, name_training, PyObject_Hash(name_training));
        b->items[item].item.required = 1;
        attach(b, same, NONE, item);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(step->operand); i++) {
        PyObject *name = PyTuple_GET_ITEM(step->operand, i);
        Item *item = &b->items[item_of(b, memo, name, PyObject_Hash(name))].item;
        item->required = item->hollow = 1;
    }
}

/* The number of other fetches that a check reads; sets `indices` unless there is only one. */
static Py_ssize_t operands(const CheckStep *step, PyObject **indices) {
    *indices = NULL;
    if (step->kind == C_ALIASED || step->kind == C_NOT_ALIASED) return 1;
    if (step->kind == C_NONE_ALIASED) *indices = step->operand;
    if (step->kind == C_PYTHON && PyTuple_Check(step->operand)) *indices = PyTuple_GET_ITEM(step->operand, 1);
    return *indices ? PyTuple_GET_SIZE(*indices) : 0;
}

static int32_t operand_at(const CheckStep *step, PyObject *indices, Py_ssize_t i) {
    return (int32_t)(indices ? PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, i)) : step->number);
}

static void attach_check(Builder *b, const CheckStep *step, int32_t draft) {
    PyObject *indices;
    Py_ssize_t count = operands(step, &indices);
    for (Py_ssize_t i = 0; i < count; i++) b->drafts[operand_at(step, indices, i)].wanted = 1;
    int32_t item = b->drafts[draft].item;
    int of_keys = (step->kind == C_HAS_KEY || step->kind == C_NOT_KEY) && PyUnicode_CheckExact(step->operand);
    if (step->kind == C_MODULE) attach_module_check(b, step, draft);
    else if (item != NONE && is_lasting(step)) attach(b, *step, NONE, item);
    else if (of_keys && !is_class(&b->drafts[draft].step)) attach_key_check(b, step, draft);
    else attach(b, *step, draft, NONE);
}

static void attach_checks(Builder *b) {
    const CheckStep *step = b->guards->check_steps;
    for (Py_ssize_t i = 0; i < b->guards->rootless; i++) attach(b, *step++, NONE, NONE);
    for (int32_t i = 0; i < b->given; i++)
        for (int32_t k = 0; k < b->guards->fetch_steps[i].checks; k++) attach_check(b, step++, i);
    for (Py_ssize_t i = 0; i < b->guards->output_count; i++) b->drafts[b->guards->output_steps[i]].wanted = 1;
}

/* -- order ------------------------------------------------------------------------------------- */
/* Emits the parents and operands of a fetch, then the fetch. They precede it in the given order, so the recursion
 * ends. */
static void emit(Builder *b, int32_t index) {
    Draft *draft = &b->drafts[index];
    if (draft->node != NONE) return;
    draft->node = 0;
    if (draft->step.parent >= 0) emit(b, draft->step.parent);
    const CheckStep *step = b->guards->check_steps + draft->first_check;
    for (int32_t k = 0; index < b->given && k < b->guards->fetch_steps[index].checks; k++, step++) {
        PyObject *indices;
        Py_ssize_t count = operands(step, &indices);
        for (Py_ssize_t i = 0; i < count; i++)
            if (operand_at(step, indices, i) != index) emit(b, operand_at(step, indices, i));
    }
    draft->node = b->node_count;
    b->order[b->node_count++] = index;
}

/* Whether a node may run Python code, makes an object, or reads an object that may have no other owner. */
static int is_owned(const Builder *b, int32_t index) {
    const Draft *draft = &b->drafts[index];
    if (draft->step.kind == F_WEAK || fetch_is_foreign(&draft->step)) return 1;
    const CheckStep *step = b->guards->check_steps + draft->first_check;
    for (int32_t k = 0; index < b->given && k < b->guards->fetch_steps[index].checks; k++)
        if (check_is_foreign(step++)) return 1;
    return 0;
}

/* Whether a fetch, or one that it depends on, calls a function marked `evaluated_last`: the program counts its calls. */
static int is_evaluated_last(const Builder *b, int32_t index) {
    for (; index >= 0; index = b->drafts[index].step.parent) {
        const FetchStep *step = &b->drafts[index].step;
        if (step->kind == F_CALL && PyObject_HasAttrString(step->key, "evaluated_last")) return 1;
    }
    return 0;
}

/* Emits the needed nodes. Nodes that own their values come first, so that the values of the others cannot be freed.
 * Functions marked `evaluated_last` must be called only if all other guards hold: they come last, and then all nodes own
 * their values. */
static void emit_needed(Builder *b) {
    int evaluates_last = 0;
    for (int last = 0; last <= evaluates_last; last++) {
        for (int owned = 1; owned >= 0; owned--) {
            for (int32_t i = 0; i < b->count; i++) {
                const Draft *draft = &b->drafts[i];
                int covered = draft->item != NONE && !draft->wanted && !draft->checks && draft->memo == NONE;
                if (covered && draft->first_child == NONE) continue;
                if (owned && !is_owned(b, i)) continue;
                if (!last && is_evaluated_last(b, i)) evaluates_last = 1;
                else emit(b, i);
            }
            if (owned && !last) b->owned_count = b->node_count;
        }
    }
    if (evaluates_last) b->owned_count = b->node_count;
}

/* -- the program ------------------------------------------------------------------------------- */
static void lay_out_items(Builder *b, Program *p) {
    for (int32_t i = 0; i < b->item_count; i++) {
        Memo *memo = &b->memos[b->items[i].memo].memo;
        memo->item_count++;
        memo->hollow_count += b->items[i].item.hollow;
    }
    int32_t first = 0, first_hollow = 0;
    for (int32_t i = 0; i < b->memo_count; i++) {
        b->memos[i].memo.first_item = first;
        b->memos[i].memo.first_hollow = first_hollow;
        first += b->memos[i].memo.item_count;
        first_hollow += b->memos[i].memo.hollow_count;
    }
    for (int hollow = 0; hollow < 2; hollow++) /* hollow items come last */
        for (int32_t i = 0; i < b->item_count; i++) {
            if (b->items[i].item.hollow != hollow) continue;
            DraftMemo *memo = &b->memos[b->items[i].memo];
            b->items[i].at = memo->memo.first_item + memo->filled++;
            p->items[b->items[i].at] = b->items[i].item;
        }
    for (int32_t i = 0; i < b->memo_count; i++) p->memos[i] = b->memos[i].memo;
}

static void lay_out_nodes(Builder *b, Program *p) {
    p->node_count = b->node_count;
    p->owned_count = b->guards->owning ? b->owned_count : 0;
    p->memo_count = b->memo_count;
    p->value_count = b->count;
    for (int32_t i = 0; i < b->node_count; i++) {
        const Draft *draft = &b->drafts[b->order[i]];
        int32_t item = draft->item == NONE ? NONE : b->items[draft->item].at;
        int32_t of = draft->item == NONE ? NONE : b->items[draft->item].memo;
        p->steps[i] = draft->step;
        p->nodes[i] = (Node){.parent = draft->step.parent, .at = b->order[i], .count = draft->checks, .item = item, .of = of,
                             .memo = draft->memo, .foreign = (uint8_t)fetch_is_foreign(&draft->step)};
    }
}

/* Reserves a range of the program's checks for one owner. */
static int32_t reserve(int32_t *first, int32_t *count, int32_t at) {
    *first = at;
    at += *count;
    *count = 0;
    return at;
}

/* Lays out the checks so that those of one owner are contiguous; checks without a fetch come first. */
static void lay_out_checks(Builder *b, Program *p) {
    int32_t at = (int32_t)b->guards->rootless;
    for (int32_t i = 0; i < p->node_count; i++) at = reserve(&p->nodes[i].first, &p->nodes[i].count, at);
    for (int32_t i = 0; i < b->item_count; i++) at = reserve(&p->items[i].first, &p->items[i].count, at);
    for (int32_t i = 0; i < b->attached_count; i++) {
        const AttachedCheck *attached = &b->attached[i];
        int32_t to = i;
        if (attached->draft != NONE) {
            Node *node = &p->nodes[b->drafts[attached->draft].node];
            to = node->first + node->count++;
            node->foreign |= (uint8_t)check_is_foreign(&attached->step);
        } else if (attached->item != NONE) {
            Item *item = &p->items[b->items[attached->item].at];
            to = item->first + item->count++;
        }
        p->checks[to] = attached->step;
    }
}

/* Whether node i reads the item after that of node i - 1 in the same list or tuple, and both have only one check, of
 * the same tensor spec. Examples are a thousand operands of one `torch.cat`, or the caches of layers. */
static int continues_run(const Program *p, int32_t i) {
    const Node *before = &p->nodes[i - 1], *node = &p->nodes[i];
    const FetchStep *last = &p->steps[i - 1], *step = &p->steps[i];
    if (step->kind != F_LIST_ITEM && step->kind != F_TUPLE_ITEM) return 0;
    if (last->kind != step->kind || last->parent != step->parent) return 0;
    if (last->index < 0 || step->index != last->index + 1 || node->at != before->at + 1) return 0;
    if (before->count != 1 || node->count != 1 || before->memo >= 0 || node->memo >= 0 || i == p->owned_count) return 0;
    const CheckStep *check = &p->checks[node->first], *other = &p->checks[before->first];
    return check->kind == C_TENSOR && other->kind == C_TENSOR && check->operand == other->operand &&
           tensor_spec_is_raw(check->operand);
}

static void find_runs(Program *p) {
    int32_t first = 0;
    for (int32_t i = 1; i < p->node_count; i++) {
        if (!continues_run(p, i)) first = i;
        else p->nodes[first].run = i - first + 1;
    }
}

static int allocate_program(const Builder *b, Program *p) {
    p->nodes = PyMem_Calloc((size_t)b->node_count + LOOK_AHEAD, sizeof(Node));
    p->steps = PyMem_Calloc((size_t)b->node_count + 1, sizeof(FetchStep));
    p->lines = PyMem_Calloc((size_t)b->node_count + 2 * LOOK_AHEAD, sizeof(Lines));
    p->memos = PyMem_Calloc((size_t)b->memo_count + 1, sizeof(Memo));
    p->items = PyMem_Calloc((size_t)b->item_count + 1, sizeof(Item));
    p->found = PyMem_Calloc((size_t)b->item_count + 1, sizeof(PyObject *));
    p->seen = PyMem_Calloc((size_t)b->item_count + 1, sizeof(Seen));
    p->hollow = PyMem_Calloc((size_t)b->item_count + LOOK_AHEAD, sizeof(PyObject *));
    p->checks = PyMem_Calloc((size_t)b->attached_count + 1, sizeof(CheckStep));
    p->item_count = b->item_count;
    int whole = p->nodes && p->steps && p->lines && p->memos && p->items && p->found && p->seen && p->hollow && p->checks;
    return whole ? 0 : -1;
}

void free_program(Program *program) {
    for (int32_t i = 0; i < program->memo_count; i++) Py_XDECREF(program->memos[i].shape.type);
    for (int32_t i = 0; program->items && i < program->item_count; i++) Py_XDECREF(program->items[i].kept_alive);
    PyMem_Free(program->nodes);
    PyMem_Free(program->steps);
    PyMem_Free(program->lines);
    PyMem_Free(program->memos);
    PyMem_Free(program->items);
    PyMem_Free(program->found);
    PyMem_Free(program->seen);
    PyMem_Free(program->hollow);
    PyMem_Free(program->checks);
}

/* Allocates memory for the largest possible number of drafts and items. */
static int allocate_drafts(Builder *b) {
    size_t checks = (size_t)b->guards->check_count, drafts = 3 * (size_t)b->given + checks, items = drafts + checks;
    for (size_t i = 0; i < checks; i++) {
        const CheckStep *step = &b->guards->check_steps[i];
        if (step->kind == C_MODULE) items += (size_t)PyTuple_GET_SIZE(step->operand) + 1;
    }
    b->drafts = PyMem_Malloc((drafts + 1) * sizeof(Draft));
    b->items = PyMem_Malloc((items + 1) * sizeof(DraftItem));
    b->memos = PyMem_Malloc((drafts + 1) * sizeof(DraftMemo));
    b->attached = PyMem_Malloc((checks + 1) * sizeof(AttachedCheck));
    b->order = PyMem_Malloc((drafts + 1) * sizeof(int32_t));
    return b->drafts && b->items && b->memos && b->attached && b->order ? 0 : -1;
}

int build_program(Guards *guards) {
    Builder builder = {.guards = guards, .given = (int32_t)guards->fetch_count}, *b = &builder;
    int status = allocate_drafts(b);
    if (status == 0) {
        draft_fetches(b);
        remember_fetches(b);
        attach_checks(b);
        emit_needed(b);
        status = allocate_program(b, &guards->program);
    }
    if (status == 0) {
        lay_out_items(b, &guards->program);
        lay_out_nodes(b, &guards->program);
        lay_out_checks(b, &guards->program);
        find_runs(&guards->program);
    } else PyErr_NoMemory();
    PyMem_Free(b->drafts);
    PyMem_Free(b->items);
    PyMem_Free(b->memos);
    PyMem_Free(b->attached);
    PyMem_Free(b->order);
    return status;
}
