/* Evaluation of guards. `run_program` is the hot loop of every compiled call; `run_steps` evaluates the given fetches
 * and checks one by one to find the first that fails. References: as long as no step can run Python code, no value can
 * be freed during the evaluation, and values are borrowed. A program evaluates the steps that can run Python code
 * first, and owns their values until the end. */
#include "memos.h"

enum { MAX_STACK_VALUES = 1024 }; /* maximum number of values on the C stack */

/* -- the loop ---------------------------------------------------------------------------------- */
static enum Outcome fail(Failure *failure, int is_check, Py_ssize_t index, PyObject *value, int answer) {
    if (failure) {
        failure->is_check = is_check;
        failure->index = index;
        failure->value = Py_NewRef(value ? value : smelt_null);
    }
    if (answer == DEAD) return DEAD;
    if (!PyErr_Occurred()) return MISS;
    /* exceptions such as KeyboardInterrupt are raised in the program */
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return RAISED;
    PyErr_Clear();
    return MISS;
}

/* -- steps as given ---------------------------------------------------------------------------- */
/* Runs all steps; sets `*reached` to the number of values that are filled. */
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
enum { CACHE_LINE_BYTES = 64 };

/* Most of the data that guards read has left the caches since the last call, during which a training step ran.
 * Therefore the program prefetches for later nodes while it evaluates this one: a whole training step reads 800
 * tensors, each at four addresses. This is a macro, because GCC drops calls of functions that only prefetch. */
#define ASK_EARLY(program, i)                                                                                          \
    do {                                                                                                               \
        const Lines *later = (program)->lines + (i) + LOOK_AHEAD;                                                      \
        __builtin_prefetch(later + LOOK_AHEAD);                                                                        \
        __builtin_prefetch((program)->nodes + (i) + LOOK_AHEAD);                                                       \
        __builtin_prefetch(later->object);                                                                             \
        if (later->implementation == later->object) break; /* no tensor */                                             \
        __builtin_prefetch(later->implementation);                                                                     \
        __builtin_prefetch(later->implementation + CACHE_LINE_BYTES);                                                  \
        __builtin_prefetch(later->implementation + 2 * CACHE_LINE_BYTES);                                              \
        __builtin_prefetch(later->gradients);                                                                          \
        __builtin_prefetch(later->gradients + CACHE_LINE_BYTES);                                                       \
        __builtin_prefetch(later->gradients + 2 * CACHE_LINE_BYTES);                                                   \
    } while (0)

static Py_NO_INLINE void remember_lines(Lines *lines, const Node *node, const CheckStep *check, PyObject *value) {
    *lines = (Lines){(const char *)value, (const char *)value, (const char *)value};
    for (int32_t i = 0; i < node->count; i++, check++) {
        const TensorSpec *spec = check->kind == C_TENSOR ? (const TensorSpec *)check->operand : NULL;
        const char *impl = spec && spec->raw && Py_TYPE(value) == spec->type ? impl_of(value) : NULL;
        if (!impl) continue;
        lines->implementation = lines->gradients = impl;
        if (layout.gradients && spec->requires_grad > 0) lines->gradients = (const char *)word(impl + layout.gradients);
    }
}

/* Prefetches a tensor that will be read: first the object, then the memory to which it points. */
static inline void ask_for_items(PyObject *const *items, Py_ssize_t i, Py_ssize_t end, const PyTypeObject *type) {
    if (i + 2 * LOOK_AHEAD < end) __builtin_prefetch(items[i + 2 * LOOK_AHEAD]);
    PyObject *later = i + LOOK_AHEAD < end ? items[i + LOOK_AHEAD] : NULL;
    if (!later || Py_TYPE(later) != type) return;
    const char *impl = impl_of(later);
    __builtin_prefetch(impl);
    __builtin_prefetch(impl + CACHE_LINE_BYTES);
    __builtin_prefetch(impl + 2 * CACHE_LINE_BYTES);
}

/* Evaluates the nodes of a run with this parent; sets the values of the nodes that hold and returns their number. */
static int32_t run_items(const Program *program, int32_t at, PyObject *parent, PyObject **values, int owned) {
    const Node *first = &program->nodes[at];
    const FetchStep *step = &program->steps[at];
    int listed = step->kind == F_LIST_ITEM;
    if (listed ? !PyList_Check(parent) : !PyTuple_Check(parent)) return 0;
    PyObject **items = listed ? ((PyListObject *)parent)->ob_item : ((PyTupleObject *)parent)->ob_item;
    if (step->index + first->run > Py_SIZE(parent)) return 0;
    const TensorSpec *spec = (const TensorSpec *)program->checks[first->first].operand;
    items += step->index;
    values += first->at;
    for (int32_t i = 0; i < first->run; i++) {
        PyObject *value = items[i];
        ask_for_items(items, i, first->run, spec->type);
        if (!value || Py_TYPE(value) != spec->type || !raw_matches(spec, value)) return i;
        values[i] = owned ? Py_NewRef(value) : value;
    }
    return first->run;
}

static uint64_t stretches; /* number of intervals of evaluations in which only guards ran */

static enum Outcome run_program(Guards *guards, const Scope *scope, PyObject **values, int32_t *reached) {
    Program *program = &guards->program;
    const CheckStep *check = program->checks, *end = check + guards->rootless;
    int answer;
    for (; check < end; check++)
        if ((answer = holds(check, NULL, values)) != 1) return fail(NULL, 1, 0, NULL, answer);
    uint64_t now = ++stretches;
    for (int32_t i = 0; i < program->node_count; i++) {
        Node *node = &program->nodes[i];
        PyObject *parent = node->parent >= 0 ? values[node->parent] : NULL, *value = NULL;
        int made = 0, known = 0;
        if (node->run) {
            int32_t done = run_items(program, i, parent, values, i < program->owned_count);
            *reached = i + done;
            if (done < node->run) return fail(NULL, 1, 0, NULL, 0);
            i += done - 1;
            continue;
        }
        ASK_EARLY(program, i);
        if (node->item >= 0) value = recall(program, i, parent, now, &known);
        if (!known) value = fetch(&program->steps[i], parent, values, scope, &made);
        if (!value) return fail(NULL, 0, 0, NULL, 0);
        if (i < program->owned_count && !made) Py_INCREF(value);
        values[node->at] = value;
        *reached = i + 1;
        check = program->checks + node->first;
        if (program->lines[i].object != (const char *)value) remember_lines(&program->lines[i], node, check, value);
        for (end = check + node->count; check < end; check++)
            if ((answer = holds(check, value, values)) != 1) return fail(NULL, 1, 0, NULL, answer);
        if (node->foreign) now = ++stretches;
        if (node->memo < 0) continue;
        Memo *memo = &program->memos[node->memo];
        if (!memo_holds(program, memo, parent, value)) return fail(NULL, 1, 0, NULL, 0);
        memo->confirmed = now;
    }
    return HIT;
}

static void release_nodes(const Program *program, PyObject **values, int32_t reached) {
    for (int32_t i = 0; i < reached && i < program->owned_count; i++) Py_DECREF(values[program->nodes[i].at]);
}

/* -- steps and program ------------------------------------------------------------------------- */
/* The array of values for one evaluation: `few` if it has room for them, else new memory. */
static PyObject **room(Py_ssize_t count, PyObject **few) {
    return count > MAX_STACK_VALUES ? PyMem_Malloc((size_t)count * sizeof(PyObject *)) : few;
}

enum Outcome guards_explain(PyObject *object, const Scope *scope, Failure *failure) {
    const Guards *guards = (const Guards *)object;
    PyObject *few[MAX_STACK_VALUES], **values = guards->fetches ? room(guards->value_count, few) : NULL;
    if (!values) return MISS;
    Py_ssize_t reached = 0;
    enum Outcome outcome = run_steps(guards, scope, values, &reached, failure);
    if (guards->owning) release_steps(guards, values, reached);
    if (values != few) PyMem_Free(values);
    return outcome;
}

enum Outcome guards_evaluate(PyObject *object, const Scope *scope, PyObject **outputs) {
    Guards *guards = (Guards *)object;
    PyObject *few[MAX_STACK_VALUES], **values = guards->fetches ? room(guards->program.value_count, few) : NULL;
    if (!values) return MISS; /* the garbage collector has cleared the guards */
    int32_t reached = 0;
    enum Outcome outcome = run_program(guards, scope, values, &reached);
    if (outcome == HIT && !(*outputs = collect_outputs(guards, values))) outcome = RAISED;
    release_nodes(&guards->program, values, reached);
    if (values != few) PyMem_Free(values);
    return outcome;
}

void evaluate_ready(void) { start_watching(); }
