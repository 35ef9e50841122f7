/* Evaluation of guards: fetch, check what was fetched, fetch the next. The hot loop of every compiled call.
 *
 * References: as long as no step can run Python code, nothing can die under us and values are borrowed. Otherwise
 * (`owning`) every value is held until the end. */
#include "dicts.h"
#include <math.h>

/* -- reading objects --------------------------------------------------------------------------- */
/* Borrowed; NULL without an exception when the object has no __dict__. */
static inline PyObject *instance_dict(PyObject *object) {
    PyObject **where = _PyObject_GetDictPtr(object);
    if (!where) return NULL;
    if (!*where) {
        PyObject *made = PyObject_GenericGetDict(object, NULL);
        if (!made) return PyErr_Clear(), NULL;
        Py_DECREF(made); /* the object keeps it */
    }
    return *where;
}

/* Borrowed; NULL with or without an exception. */
static inline PyObject *dict_item(PyObject *dict, PyObject *key, Py_hash_t hash, int32_t *hint) {
    return dict && PyDict_Check(dict) ? hinted_item(dict, key, hash, hint) : NULL;
}

static inline Py_hash_t name_hash(PyObject *name) { return ((PyASCIIObject *)name)->hash; } /* computed when built */

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

/* Borrowed, except for the three kinds that make objects (`made` set). NULL: the guard fails. */
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
    case F_TYPE: return (PyObject *)Py_TYPE(parent);
    case F_CELL: return cell_content(parent);
    case F_MODULE_MEMBER:
        found = dict_item(values[step->index], step->key, name_hash(step->key), &step->hint);
        return found ? dict_item(found, step->second, step->hash, &step->second_hint) : NULL;
    case F_ATTR: *made = 1; return PyObject_GetAttr(parent, step->key);
    case F_SIZE: *made = 1; return tensor_size(parent, step->index, step->second != NULL);
    case F_CALL: *made = 1; return PyObject_CallOneArg(step->key, parent);
    }
    Py_UNREACHABLE();
}

/* -- checks ------------------------------------------------------------------------------------ */
int is_plain_constant(PyObject *object) {
    if (object == Py_None || object == Py_Ellipsis || PyBool_Check(object) || PyLong_CheckExact(object) ||
        PyUnicode_CheckExact(object) || PyFloat_CheckExact(object) || PyBytes_CheckExact(object))
        return 1;
    if (!PyTuple_CheckExact(object)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++)
        if (!is_plain_constant(PyTuple_GET_ITEM(object, i))) return 0;
    return 1;
}

static inline int equal_floats(double a, double b) { return a == b ? signbit(a) == signbit(b) : a != a && b != b; }

static int equal_tuples(PyObject *value, PyObject *constant) {
    Py_ssize_t size = PyTuple_GET_SIZE(constant);
    int equal = PyTuple_GET_SIZE(value) == size;
    for (Py_ssize_t i = 0; equal > 0 && i < size; i++)
        equal = equal_constants(PyTuple_GET_ITEM(value, i), PyTuple_GET_ITEM(constant, i));
    return equal;
}

int equal_constants(PyObject *value, PyObject *constant) {
    if (value == constant) return 1;
    if (Py_TYPE(value) != Py_TYPE(constant)) return 0;
    if (PyUnicode_CheckExact(constant))
        return PyUnicode_GET_LENGTH(value) == PyUnicode_GET_LENGTH(constant) && PyUnicode_Compare(value, constant) == 0;
    if (PyFloat_CheckExact(constant)) return equal_floats(PyFloat_AS_DOUBLE(value), PyFloat_AS_DOUBLE(constant));
    if (PyComplex_CheckExact(constant)) {
        Py_complex a = ((PyComplexObject *)value)->cval, b = ((PyComplexObject *)constant)->cval;
        return equal_floats(a.real, b.real) && equal_floats(a.imag, b.imag);
    }
    if (PyTuple_CheckExact(constant)) return equal_tuples(value, constant);
    return PyObject_RichCompareBool(value, constant, Py_EQ);
}

/* Own storage, as for fetched items: no __len__ of subclasses, so no Python code. */
static inline int has_length(PyObject *value, Py_ssize_t length) {
    if (PyList_Check(value) || PyTuple_Check(value)) return Py_SIZE(value) == length;
    if (PyDict_Check(value)) return PyDict_GET_SIZE(value) == length;
    if (PyAnySet_Check(value)) return PySet_GET_SIZE(value) == length;
    if (PyUnicode_Check(value)) return PyUnicode_GET_LENGTH(value) == length;
    return PyBytes_Check(value) && PyBytes_GET_SIZE(value) == length;
}

static inline int in_range(PyObject *value, Py_ssize_t low, Py_ssize_t high) {
    if (!PyLong_CheckExact(value)) return 0;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && low <= number && number <= high;
}

static int has_keys(PyObject *dict, PyObject *keys) {
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return 0;
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int equal = 1;
    for (Py_ssize_t i = 0; equal > 0 && i < PyTuple_GET_SIZE(keys); i++)
        equal = PyDict_Next(dict, &position, &key, &value) ? equal_constants(key, PyTuple_GET_ITEM(keys, i)) : 0;
    return equal;
}

static inline int key_state(PyObject *dict, PyObject *key, Py_hash_t hash, int wanted) {
    if (!PyDict_Check(dict)) return 0;
    PyObject *found = _PyDict_GetItem_KnownHash(dict, key, hash);
    return !found && PyErr_Occurred() ? -1 : !!found == wanted;
}

static inline int module_is(PyObject *dict, Py_ssize_t training, PyObject *names, int32_t *hints) {
    if (!dict) return 0;
    PyObject *wanted = training ? Py_True : Py_False;
    if (training >= 0 && hinted_item(dict, name_training, name_hash(name_training), &hints[0]) != wanted) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *member = hinted_item(dict, name, name_hash(name), &hints[i + 1]);
        if (!member || !PyDict_Check(member) || PyDict_GET_SIZE(member)) return 0;
    }
    return 1;
}

/* No two of the values are the same object. A small hash set of addresses: pairs would be quadratic. */
static int all_different(const int32_t *indices, size_t count, PyObject **values) {
    size_t size = 16;
    while (size < 2 * count) size *= 2;
    PyObject *few[512], **set = size <= 512 ? few : PyMem_Malloc(size * sizeof(PyObject *));
    if (!set) return 0;
    memset(set, 0, size * sizeof(PyObject *));
    int different = 1;
    for (size_t i = 0; different && i < count; i++) {
        PyObject *value = values[indices[i]];
        size_t place = ((uintptr_t)value >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (size - 1);
        while (set[place] && set[place] != value) place = (place + 1) & (size - 1);
        different = !set[place];
        set[place] = value;
    }
    if (set != few) PyMem_Free(set);
    return different;
}

static int ask_python(PyObject *operand, PyObject *value, PyObject **values) {
    PyObject *answer;
    if (PyTuple_Check(operand)) {
        PyObject *indices = PyTuple_GET_ITEM(operand, 1), *args = PyTuple_New(PyTuple_GET_SIZE(indices));
        if (!args) return -1;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(indices); i++)
            PyTuple_SET_ITEM(args, i, Py_NewRef(values[PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, i))]));
        answer = PyObject_CallObject(PyTuple_GET_ITEM(operand, 0), args);
        Py_DECREF(args);
    } else answer = PyObject_CallOneArg(operand, value);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

/* 1 holds, 0 or -1 (with an exception) not, DEAD never again. */
static inline int holds(const CheckStep *step, PyObject *value, PyObject **values) {
    switch (step->kind) {
    case C_IS: return value == step->operand;
    case C_IS_NOT: return value != step->operand;
    case C_TYPE_IS: return (PyObject *)Py_TYPE(value) == step->operand;
    case C_EQ: return equal_constants(value, step->operand);
    case C_LEN: return has_length(value, step->number);
    case C_RANGE: return in_range(value, step->number, step->high);
    case C_DICT_KEYS: return has_keys(value, step->operand);
    case C_HAS_KEY: return key_state(value, step->operand, step->high, 1);
    case C_NOT_KEY: return key_state(value, step->operand, step->high, 0);
    case C_MISSING: return value == smelt_null;
    case C_WEAK_IS: {
        PyObject *target = weak_target(step->operand);
        return target ? value == target : DEAD;
    }
    case C_TENSOR: return tensor_spec_matches(step->operand, value);
    case C_ALIASED: return value == values[step->number];
    case C_NOT_ALIASED: return value != values[step->number];
    case C_NONE_ALIASED: return all_different(step->numbers, (size_t)PyTuple_GET_SIZE(step->operand), values);
    case C_STATE: return state_matches(step->operand);
    case C_MODULE: return module_is(values[step->high], step->number, step->operand, step->numbers);
    case C_PYTHON: return ask_python(step->operand, value, values);
    }
    Py_UNREACHABLE();
}

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

static void release_values(const Guards *guards, PyObject **values, Py_ssize_t reached) {
    for (Py_ssize_t i = 0; i < reached; i++) {
        Py_DECREF(values[i]);
        if (guards->fetch_steps[i].dict_at) Py_XDECREF(values[guards->fetch_steps[i].dict_at]);
    }
}

enum Outcome guards_evaluate(PyObject *object, const Scope *scope, PyObject **outputs, Failure *failure) {
    const Guards *guards = (const Guards *)object;
    PyObject *few[512], **values = few;
    if (!guards->fetches) return MISS; /* cleared by the garbage collector */
    if (guards->value_count > 512) values = PyMem_Malloc((size_t)guards->value_count * sizeof(PyObject *));
    if (!values) return MISS;
    Py_ssize_t reached = 0;
    enum Outcome outcome = run_steps(guards, scope, values, &reached, failure);
    if (outcome == HIT && outputs && !(*outputs = collect_outputs(guards, values))) outcome = RAISED;
    if (guards->owning) release_values(guards, values, reached);
    if (values != few) PyMem_Free(values);
    return outcome;
}
