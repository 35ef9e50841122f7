/* Evaluation of guards. `run_program` is the hot loop of every compiled call; `run_steps` takes the fetches and checks
 * one by one, as they were given, to say which one fails.
 *
 * References: as long as no step can run Python code, nothing can die under us and values are borrowed. Otherwise
 * (`owning`) every value is held until the end. */
#include "checks.h"

enum { FEW = 1024 }; /* this many values stand on the C stack */

/* -- the loop ---------------------------------------------------------------------------------- */
static enum Outcome fail(Failure *failure, int is_check, Py_ssize_t index, PyObject *value, int answer) {
    if (failure) {
        failure->is_check = is_check;
        failure->index = index;
        failure->value = Py_NewRef(value ? value : smelt_null);
    }
    if (answer == DEAD) return DEAD;
    if (!PyErr_Occurred()) return MISS;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return RAISED; /* KeyboardInterrupt and the like are not ours */
    PyErr_Clear();
    return MISS;
}

/* -- as given ---------------------------------------------------------------------------------- */
/* Runs all steps; `*reached` values are filled. */
static enum Outcome run_steps(const Guards *guards, const Scope *scope, PyObject **values, Py_ssize_t *reached,
                              Failure *failure) {
    const CheckStep *check = guards->check_steps, *end = check + guards->rootless;
    int answer;
    for (; check < end; check++)
        if ((answer = holds(check, NULL, values)) != 1) return fail(failure, 1, check->given, NULL, answer);
    for (Py_ssize_t i = 0; i < guards->fetch_count; i++) {
        FetchStep *step = &guards->fetch_steps[i];
        PyObject *parent = step->parent >= 0 ? values[step->parent] : NULL;
        int made = 0;
        PyObject *value = fetch(step, parent, values, scope, &made);
        if (!value) return fail(failure, 0, i, parent, 0);
        if (guards->owning && !made) Py_INCREF(value);
        values[i] = value;
        *reached = i + 1;
        if (step->dict_at) {
            values[step->dict_at] = instance_dict(value);
            if (guards->owning) Py_XINCREF(values[step->dict_at]);
        }
        for (end = check + step->checks; check < end; check++)
            if ((answer = holds(check, value, values)) != 1) return fail(failure, 1, check->given, value, answer);
    }
    return HIT;
}

static PyObject *collect_outputs(const Guards *guards, PyObject **values) {
    PyObject *outputs = PyTuple_New(guards->output_count);
    for (Py_ssize_t i = 0; outputs && i < guards->output_count; i++)
        PyTuple_SET_ITEM(outputs, i, Py_NewRef(values[guards->output_steps[i]]));
    return outputs;
}

static void release_steps(const Guards *guards, PyObject **values, Py_ssize_t reached) {
    for (Py_ssize_t i = 0; i < reached; i++) {
        Py_DECREF(values[i]);
        if (guards->fetch_steps[i].dict_at) Py_XDECREF(values[guards->fetch_steps[i].dict_at]);
    }
}

/* -- the program ------------------------------------------------------------------------------- */
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

/* Reads what the memo is about again; runs no Python code. `object` is what `owner` has as its dict, or a class. */
static Py_NO_INLINE int renew(const Program *program, Memo *memo, PyObject *owner, PyObject *object) {
    memo->version = 0;
    if (!memo->is_class && !PyDict_Check(object)) return 0;
    for (int32_t i = memo->first_item; i < memo->first_item + memo->item_count; i++) {
        Item *item = &program->items[i];
        if (memo->is_class) item->value = _PyType_Lookup((PyTypeObject *)object, item->key);
        else item->value = hinted_item(object, item->key, item->hash, &item->hint);
        if ((!item->value && PyErr_Occurred()) || !item_holds(program, item, item->value)) return 0;
    }
    memo->version = version_now(memo, object); /* of a class: looking names up gave it one */
#if PY_VERSION_HEX >= 0x030d0000
    if (!memo->version && !memo->is_class && owner) {
        take_shape(&memo->shape, owner, object);
        for (int32_t i = 0; memo->shape.keys && i < memo->item_count; i++) {
            Item *item = &program->items[memo->first_item + i];
            item->place = place_in(&memo->shape, item->key);
        }
    }
#endif
    return 1;
}

/* The values of an object are read each time, but for their names. */
static inline int shape_holds(const Program *program, Memo *memo, PyObject *dict) {
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *const *values = shaped_values(&memo->shape, dict);
    if (!values) return 0;
    memo->version = 0; /* the items are no longer those of the dict that had it */
    Item *item = program->items + memo->first_item;
    for (int32_t i = 0; i < memo->item_count; i++, item++) {
        item->value = item->place >= 0 ? values[item->place] : NULL;
        if (!item_holds(program, item, item->value)) return 0; /* said so again by `renew` */
    }
    return 1;
#else
    return 0;
#endif
}

static inline int memo_holds(const Program *program, Memo *memo, PyObject *owner, PyObject *object) {
    uint64_t version = memo->version;
    if (!version || version_now(memo, object) != version)
        if (!shape_holds(program, memo, object) && !renew(program, memo, owner, object)) return 0;
    const Item *item = program->items + memo->first_item + memo->item_count - memo->hollow_count;
    for (int32_t i = 0; i < memo->hollow_count; i++, item++)
        if (PyDict_GET_SIZE(item->value)) return 0;
    return 1;
}

/* What the parent's memo knows; NULL with `*known` set: there is nothing. */
static inline PyObject *recall(const Program *program, const Node *node, PyObject *parent, int *known) {
    const Memo *memo = &program->memos[node->of];
    const Item *item = &program->items[node->item];
    PyObject *value = item->value;
    *known = memo->version && version_now(memo, parent) == memo->version;
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *const *values = *known ? NULL : shaped_values(&memo->shape, parent);
    if (values) {
        *known = 1;
        value = item->place >= 0 ? values[item->place] : NULL;
    }
#endif
    if (!*known) return NULL;
    return value || node->step.kind == F_DICT_ITEM ? value : smelt_null;
}

static enum Outcome run_program(const Guards *guards, const Scope *scope, PyObject **values, int32_t *reached) {
    const Program *program = &guards->program;
    const CheckStep *check = program->checks, *end = check + guards->rootless;
    int answer;
    for (; check < end; check++)
        if ((answer = holds(check, NULL, values)) != 1) return fail(NULL, 1, 0, NULL, answer);
    for (int32_t i = 0; i < program->node_count; i++) {
        Node *node = &program->nodes[i];
        PyObject *parent = node->step.parent >= 0 ? values[node->step.parent] : NULL, *value = NULL;
        int made = 0, known = 0;
        if (node->item >= 0) value = recall(program, node, parent, &known);
        if (!known) value = fetch(&node->step, parent, values, scope, &made);
        if (!value) return fail(NULL, 0, 0, NULL, 0);
        if (guards->owning && !made) Py_INCREF(value);
        values[node->at] = value;
        *reached = i + 1;
        check = program->checks + node->first;
        for (end = check + node->count; check < end; check++)
            if ((answer = holds(check, value, values)) != 1) return fail(NULL, 1, 0, NULL, answer);
        if (node->memo >= 0 && !memo_holds(program, &program->memos[node->memo], parent, value))
            return fail(NULL, 1, 0, NULL, 0);
    }
    return HIT;
}

static void release_nodes(const Guards *guards, PyObject **values, int32_t reached) {
    for (int32_t i = 0; i < reached; i++) Py_DECREF(values[guards->program.nodes[i].at]);
}

/* -- both -------------------------------------------------------------------------------------- */
/* Values for one evaluation: `few` if they fit. */
static PyObject **room(Py_ssize_t count, PyObject **few) {
    return count > FEW ? PyMem_Malloc((size_t)count * sizeof(PyObject *)) : few;
}

enum Outcome guards_explain(PyObject *object, const Scope *scope, Failure *failure) {
    const Guards *guards = (const Guards *)object;
    PyObject *few[FEW], **values = guards->fetches ? room(guards->value_count, few) : NULL;
    if (!values) return MISS;
    Py_ssize_t reached = 0;
    enum Outcome outcome = run_steps(guards, scope, values, &reached, failure);
    if (guards->owning) release_steps(guards, values, reached);
    if (values != few) PyMem_Free(values);
    return outcome;
}

enum Outcome guards_evaluate(PyObject *object, const Scope *scope, PyObject **outputs) {
    const Guards *guards = (const Guards *)object;
    PyObject *few[FEW], **values = guards->fetches ? room(guards->program.value_count, few) : NULL;
    if (!values) return MISS; /* cleared by the garbage collector */
    int32_t reached = 0;
    enum Outcome outcome = run_program(guards, scope, values, &reached);
    if (outcome == HIT && !(*outputs = collect_outputs(guards, values))) outcome = RAISED;
    if (guards->owning) release_nodes(guards, values, reached);
    if (values != few) PyMem_Free(values);
    return outcome;
}
