/* Compiles the fetches and checks of Guards to the steps that evaluate.c evaluates; refuses malformed ones. */
#include "guards.h"
#include <structmember.h>

static int bad(const char *what, Py_ssize_t index, const char *kind, const char *wants) {
    PyErr_Format(PyExc_TypeError, "%s %zd (%s) wants %s", what, index, kind, wants);
    return -1;
}

/* -- fetches ----------------------------------------------------------------------------------- */
static int is_interned_name(PyObject *object) { return PyUnicode_CheckExact(object) && PyObject_Hash(object) != -1; }

/* Index of the __dict__ of fetch `index` in the values. 0 means none, since index 0 is the first fetch's value. */
static Py_ssize_t dict_value_index(Guards *guards, Py_ssize_t index) {
    FetchStep *step = &guards->fetch_steps[index];
    if (!step->dict_at) step->dict_at = (int32_t)guards->value_count++;
    return step->dict_at;
}

static int read_member(Guards *guards, FetchStep *step, PyObject *key) {
    if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) != 2 || !is_interned_name(PyTuple_GET_ITEM(key, 0)) ||
        !is_interned_name(PyTuple_GET_ITEM(key, 1)))
        return 0;
    step->key = PyTuple_GET_ITEM(key, 0);
    step->second = PyTuple_GET_ITEM(key, 1);
    step->hash = PyObject_Hash(step->second);
    step->index = dict_value_index(guards, step->parent);
    return 1;
}

static int read_index(FetchStep *step, PyObject *key, int may_be_negative) {
    if (!PyLong_Check(key)) return 0;
    step->index = PyLong_AsSsize_t(key);
    if (step->index == -1 && PyErr_Occurred()) PyErr_Clear();
    return may_be_negative || step->index >= 0;
}

/* Reads a fetch of an attribute that is a field of the function object. */
static int read_function_field(FetchStep *step, PyObject *key) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"__code__", offsetof(PyFunctionObject, func_code)},
        {"__defaults__", offsetof(PyFunctionObject, func_defaults)},
        {"__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
        {"__closure__", offsetof(PyFunctionObject, func_closure)},
        {"__name__", offsetof(PyFunctionObject, func_name)},
        {"__qualname__", offsetof(PyFunctionObject, func_qualname)},
        {"__module__", offsetof(PyFunctionObject, func_module)},
        {"__doc__", offsetof(PyFunctionObject, func_doc)},
    };
    for (size_t i = 0; PyUnicode_Check(key) && i < sizeof fields / sizeof *fields; i++)
        if (PyUnicode_CompareWithASCIIString(key, fields[i].name) == 0) {
            step->index = (Py_ssize_t)fields[i].offset;
            return 1;
        }
    return 0;
}

/* Whether a member of an object is a reference to an object, not a C number. */
static int is_slot(PyObject *object) {
    if (Py_TYPE(object) != &PyMemberDescr_Type) return 0;
    int type = ((PyMemberDescrObject *)object)->d_member->type;
    return type == T_OBJECT_EX || type == T_OBJECT;
}

PyObject *is_slot_method(PyObject *module, PyObject *object) { return PyBool_FromLong(is_slot(object)); }

PyObject *takes_all_method(PyObject *module, PyObject *object) {
    return PyBool_FromLong(is_slot(object) && !(((PyMemberDescrObject *)object)->d_member->flags & READONLY));
}

static int read_slot(FetchStep *step, PyObject *key) {
    if (!is_slot(key)) return 0;
    const PyMemberDef *member = ((PyMemberDescrObject *)key)->d_member;
    step->index = member->offset;
    step->second = member->type == T_OBJECT ? Py_None : smelt_null;
    return 1;
}

/* Whether a fetch may run Python code, or makes an object without another owner. */
int fetch_is_foreign(const FetchStep *step) {
    switch (step->kind) {
    case F_ATTR:
    case F_SIZE:
    case F_CALL: return 1;
    case F_DICT_ITEM:
    case F_DICT_ITEM_OR_MISSING: return !is_plain_constant(step->key);
    default: return 0;
    }
}

/* Fills the step; -1 with an exception. */
static int read_key(Guards *guards, FetchStep *step, Py_ssize_t index, PyObject *key) {
    const char *kind = fetch_names[step->kind];
    step->key = key;
    switch (step->kind) {
    case F_LOCAL:
        if (!read_index(step, key, 0)) return bad("fetch", index, kind, "a slot number");
        if (step->index >= guards->slot_bound) guards->slot_bound = step->index + 1;
        return 0;
    case F_CLOSURE:
    case F_CLOSURE_CELL: return read_index(step, key, 0) ? 0 : bad("fetch", index, kind, "an index");
    case F_LIST_ITEM:
    case F_DICT_VALUE:
    case F_TUPLE_ITEM: return read_index(step, key, 1) ? 0 : bad("fetch", index, kind, "an index");
    case F_SIZE: return read_index(step, key, 1) ? 0 : bad("fetch", index, kind, "a dimension");
    case F_GLOBAL:
        step->hash = PyObject_Hash(key);
        return PyUnicode_CheckExact(key) ? 0 : bad("fetch", index, kind, "a name");
    case F_ATTR:
    case F_TYPE_ATTR:
    case F_CLASS_ATTR: return is_interned_name(key) ? 0 : bad("fetch", index, kind, "a name");
    case F_DICT_ITEM:
    case F_DICT_ITEM_OR_MISSING:
        step->hash = PyObject_Hash(key);
        return step->hash == -1 ? -1 : 0;
    case F_MODULE_MEMBER:
        return read_member(guards, step, key) ? 0 : bad("fetch", index, kind, "(dict name, member name)");
    case F_WEAK:
        guards->owning = 1; /* the referent may have no other owner */
        return PyWeakref_CheckRefExact(key) ? 0 : bad("fetch", index, kind, "a weakref.ref");
    case F_FUNCTION_FIELD: return read_function_field(step, key) ? 0 : bad("fetch", index, kind, "the name of a field of functions");
    case F_SLOT: return read_slot(step, key) ? 0 : bad("fetch", index, kind, "the descriptor of a slot");
    case F_CALL: return PyCallable_Check(key) ? 0 : bad("fetch", index, kind, "a callable");
    default: return 0;
    }
}

static int read_fetch(Guards *guards, Py_ssize_t index) {
    FetchStep *step = &guards->fetch_steps[index];
    PyObject *key;
    Py_ssize_t parent;
    int kind;
    PyObject *item = PyTuple_GET_ITEM(guards->fetches, index);
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "niO", &parent, &kind, &key)) {
        PyErr_Clear();
        return PyErr_Format(PyExc_TypeError, "fetch %zd is not (parent, KIND, key): %R", index, item), -1;
    }
    if (kind < 0 || kind >= FETCH_COUNT)
        return PyErr_Format(PyExc_ValueError, "fetch %zd: unknown kind %d", index, kind), -1;
    if (kind <= LAST_ROOT ? parent != -1 : parent < 0 || parent >= index)
        return PyErr_Format(PyExc_ValueError, "fetch %zd (%s): parent %zd", index, fetch_names[kind], parent), -1;
    step->kind = (uint8_t)kind;
    step->parent = (int32_t)parent;
    step->hint = step->second_hint = NO_HINT;
    if (read_key(guards, step, index, key) < 0) return -1;
    guards->owning |= fetch_is_foreign(step);
    return 0;
}

/* -- checks ------------------------------------------------------------------------------------ */
static int is_index_tuple(PyObject *object, Py_ssize_t last) {
    if (!PyTuple_Check(object)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
        PyObject *item = PyTuple_GET_ITEM(object, i);
        Py_ssize_t index = PyLong_Check(item) ? PyLong_AsSsize_t(item) : -1;
        if (index < 0 || index > last) return PyErr_Clear(), 0;
    }
    return 1;
}

static int is_name_tuple(PyObject *object) {
    if (!PyTuple_Check(object)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++)
        if (!is_interned_name(PyTuple_GET_ITEM(object, i))) return 0;
    return 1;
}

/* Reads a pair of integers; returns 0 without an exception if the operand is not a pair. */
static int read_range(CheckStep *step, PyObject *operand) {
    if (PyTuple_Check(operand) && PyArg_ParseTuple(operand, "nn", &step->number, &step->high)) return 1;
    PyErr_Clear();
    return 0;
}

/* Sets step->numbers to the tuple's ints, or to `count` hints if there is no tuple. */
static int set_numbers(CheckStep *step, PyObject *tuple, Py_ssize_t count) {
    if (tuple) count = PyTuple_GET_SIZE(tuple);
    step->numbers = PyMem_Malloc((size_t)(count + 1) * sizeof(int32_t));
    if (!step->numbers) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < count; i++)
        step->numbers[i] = tuple ? (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(tuple, i)) : NO_HINT;
    return 0;
}

static int read_module(CheckStep *step, PyObject *operand) {
    PyObject *training = PyTuple_Check(operand) && PyTuple_GET_SIZE(operand) == 2 ? PyTuple_GET_ITEM(operand, 0) : NULL;
    if (!training || !(training == Py_None || PyBool_Check(training))) return 0;
    if (!is_name_tuple(PyTuple_GET_ITEM(operand, 1))) return 0;
    step->number = training == Py_None ? -1 : training == Py_True;
    step->operand = PyTuple_GET_ITEM(operand, 1);
    return 1;
}

static int read_python(PyObject *operand, Py_ssize_t fetch) {
    if (!PyTuple_Check(operand)) return PyCallable_Check(operand);
    Py_ssize_t size = PyTuple_GET_SIZE(operand);
    if (size == 3) {
        PyObject *which = PyTuple_GET_ITEM(operand, 2);
        long number = PyLong_Check(which) ? PyLong_AsLong(which) : PyTuple_Check(which) ? 0 : -1;
        if (number < 0 || number >= SHORTCUT_COUNT) return PyErr_Clear(), 0;
    }
    return (size == 2 || size == 3) && PyCallable_Check(PyTuple_GET_ITEM(operand, 0)) &&
           is_index_tuple(PyTuple_GET_ITEM(operand, 1), fetch);
}

/* The spec of a preceding check by which the fetch gives a tensor whose memory may be read; NULL if there is none. */
static TensorSpec *raw_spec_of(const Guards *guards, Py_ssize_t fetch, const CheckStep *asking) {
    const CheckStep *step = guards->check_steps + guards->rootless;
    for (Py_ssize_t i = 0; i < fetch; i++) step += guards->fetch_steps[i].checks;
    for (const CheckStep *end = step + guards->fetch_steps[fetch].checks; step < end && step < asking; step++)
        if (step->kind == C_TENSOR && tensor_spec_is_raw(step->operand)) return (TensorSpec *)step->operand;
    return NULL;
}

/* Adds the shortcut of a PYTHON check, if the check names one and its fetches give tensors whose memory may be read. */
static int add_shortcut(const Guards *guards, CheckStep *step) {
    PyObject *operand = step->operand;
    if (step->kind != C_PYTHON || !PyTuple_Check(operand) || PyTuple_GET_SIZE(operand) != 3) return 0;
    PyObject *indices = PyTuple_GET_ITEM(operand, 1);
    if (PyTuple_Check(PyTuple_GET_ITEM(operand, 2))) {
        step->shortcut = shortcut_of_sizes(indices, PyTuple_GET_ITEM(operand, 2));
        return step->shortcut ? 0 : -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(indices), found = 0;
    TensorSpec **specs = PyMem_Malloc((size_t)(count + 1) * sizeof *specs);
    if (!specs) return PyErr_NoMemory(), -1;
    while (found < count) {
        specs[found] = raw_spec_of(guards, PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, found)), step);
        if (!specs[found]) break;
        found++;
    }
    if (count && found == count)
        step->shortcut = shortcut_new((int)PyLong_AsLong(PyTuple_GET_ITEM(operand, 2)), indices, specs);
    PyMem_Free(specs);
    return count && found == count && !step->shortcut ? -1 : 0;
}

/* Whether a check may run Python code. */
int check_is_foreign(const CheckStep *step) {
    switch (step->kind) {
    case C_EQ:
    case C_DICT_KEYS:
    case C_HAS_KEY:
    case C_NOT_KEY: return !is_plain_constant(step->operand);
    case C_TENSOR: return !tensor_spec_is_raw(step->operand);
    case C_PYTHON: return 1;
    default: return 0;
    }
}

/* Fills the step; -1 with an exception. */
static int read_operand(Guards *guards, CheckStep *step, Py_ssize_t index, Py_ssize_t fetch, PyObject *operand) {
    const char *kind = check_names[step->kind];
    step->operand = operand;
    switch (step->kind) {
    case C_TYPE_IS: return PyType_Check(operand) ? 0 : bad("check", index, kind, "a class");
    case C_EQ: return 0;
    case C_DICT_KEYS:
        return PyTuple_Check(operand) ? 0 : bad("check", index, kind, "a tuple of keys");
    case C_HAS_KEY:
    case C_NOT_KEY:
        step->high = PyObject_Hash(operand);
        return step->high == -1 ? -1 : 0;
    case C_LEN:
    case C_ALIASED:
    case C_NOT_ALIASED:
        if (!PyLong_Check(operand)) return bad("check", index, kind, "an int");
        step->number = PyLong_AsSsize_t(operand);
        if (step->number < 0 || (step->kind != C_LEN && step->number > fetch))
            return PyErr_Clear(), bad("check", index, kind, "an int in range");
        return 0;
    case C_RANGE: return read_range(step, operand) ? 0 : bad("check", index, kind, "(low, high)");
    case C_WEAK_IS: return PyWeakref_CheckRefExact(operand) ? 0 : bad("check", index, kind, "a weakref.ref");
    case C_TENSOR:
        return Py_TYPE(operand) == &TensorSpecType ? 0 : bad("check", index, kind, "a TensorSpec");
    case C_NONE_ALIASED:
        if (!is_index_tuple(operand, fetch)) return bad("check", index, kind, "a tuple of fetch indices");
        return set_numbers(step, operand, 0);
    case C_STATE: return PyTuple_Check(operand) ? 0 : bad("check", index, kind, "what state() returned");
    case C_MODULE:
        if (!read_module(step, operand)) return bad("check", index, kind, "(bool or None, tuple of names)");
        step->high = dict_value_index(guards, fetch);
        return set_numbers(step, NULL, PyTuple_GET_SIZE(step->operand) + 1);
    case C_FUNCTION:
        if (PyTuple_Check(operand) && PyTuple_GET_SIZE(operand) == 3) return 0;
        return bad("check", index, kind, "(code, defaults, keyword defaults)");
    case C_PYTHON:
        if (fetch < 0) return PyCallable_Check(operand) ? 0 : bad("check", index, kind, "a callable");
        return read_python(operand, fetch) ? 0 : bad("check", index, kind, "a callable or (callable, fetch indices)");
    default: return 0;
    }
}

static int parse_check(Guards *guards, Py_ssize_t index, Py_ssize_t *fetch, int *kind, PyObject **operand) {
    PyObject *item = PyTuple_GET_ITEM(guards->checks, index);
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "niO", fetch, kind, operand)) {
        PyErr_Clear();
        return PyErr_Format(PyExc_TypeError, "check %zd is not (fetch, KIND, operand): %R", index, item), -1;
    }
    if (*kind < 0 || *kind >= CHECK_COUNT)
        return PyErr_Format(PyExc_ValueError, "check %zd: unknown kind %d", index, *kind), -1;
    int rootless = *kind == C_STATE || (*kind == C_PYTHON && *fetch == -1);
    if (rootless ? *fetch != -1 : *fetch < 0 || *fetch >= guards->fetch_count)
        return PyErr_Format(PyExc_ValueError, "check %zd (%s): fetch %zd", index, check_names[*kind], *fetch), -1;
    return 0;
}

/* Groups the checks by fetch, keeping their order (counting sort). */
static int read_checks(Guards *guards) {
    Py_ssize_t count = guards->check_count, fetch, *starts;
    starts = PyMem_Calloc((size_t)guards->fetch_count + 2, sizeof *starts);
    PyObject *operand;
    int kind, status = starts ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        status = parse_check(guards, i, &fetch, &kind, &operand);
        if (status == 0) starts[fetch + 2]++; /* fetch -1 comes first; shifted by one for the sums below */
    }
    for (Py_ssize_t i = 0; status == 0 && i < guards->fetch_count; i++) {
        if (starts[i + 2] > UINT16_MAX) {
            PyErr_Format(PyExc_ValueError, "too many checks of fetch %zd", i);
            status = -1;
        }
        guards->fetch_steps[i].checks = (uint16_t)starts[i + 2];
    }
    if (status == 0) guards->rootless = starts[1];
    for (Py_ssize_t i = 1; status == 0 && i < guards->fetch_count + 2; i++) starts[i] += starts[i - 1];
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        parse_check(guards, i, &fetch, &kind, &operand);
        CheckStep *step = &guards->check_steps[starts[fetch + 1]++];
        step->kind = (uint8_t)kind;
        step->given = (int32_t)i;
        status = read_operand(guards, step, i, fetch, operand);
        /* a check without a fetch runs before any value is fetched */
        if (status == 0 && fetch >= 0) guards->owning |= check_is_foreign(step);
        if (status == 0 && kind == C_TENSOR && tensor_spec_is_raw(operand))
            for (Py_ssize_t child = fetch + 1; child < guards->fetch_count; child++)
                if (guards->fetch_steps[child].kind == F_SIZE && guards->fetch_steps[child].parent == fetch)
                    guards->fetch_steps[child].second = Py_None;
    }
    PyMem_Free(starts);
    return status;
}

/* -- the Guards object ------------------------------------------------------------------------- */
static int read_outputs(Guards *guards) {
    for (Py_ssize_t i = 0; i < guards->output_count; i++) {
        PyObject *item = PyTuple_GET_ITEM(guards->outputs, i);
        Py_ssize_t index = PyLong_Check(item) ? PyLong_AsSsize_t(item) : -1;
        if (index < 0 || index >= guards->fetch_count)
            return PyErr_Clear(), PyErr_Format(PyExc_ValueError, "output %zd: fetch %R", i, item), -1;
        guards->output_steps[i] = (int32_t)index;
    }
    return 0;
}

static int allocate(Guards *guards) {
    guards->fetch_count = guards->value_count = PyTuple_GET_SIZE(guards->fetches);
    guards->check_count = PyTuple_GET_SIZE(guards->checks);
    guards->output_count = PyTuple_GET_SIZE(guards->outputs);
    guards->fetch_steps = PyMem_Calloc((size_t)guards->fetch_count + 1, sizeof(FetchStep));
    guards->check_steps = PyMem_Calloc((size_t)guards->check_count + 1, sizeof(CheckStep));
    guards->output_steps = PyMem_Calloc((size_t)guards->output_count + 1, sizeof(int32_t));
    if (guards->fetch_steps && guards->check_steps && guards->output_steps) return 0;
    PyErr_NoMemory();
    return -1;
}

int build_steps(Guards *guards, PyObject *fetches, PyObject *checks, PyObject *outputs) {
    guards->fetches = PySequence_Tuple(fetches);
    guards->checks = guards->fetches ? PySequence_Tuple(checks) : NULL;
    guards->outputs = guards->checks ? PySequence_Tuple(outputs) : NULL;
    if (!guards->outputs || allocate(guards) < 0) return -1;
    for (Py_ssize_t i = 0; i < guards->fetch_count; i++)
        if (read_fetch(guards, i) < 0) return -1;
    if (read_checks(guards) < 0) return -1;
    for (Py_ssize_t i = 0; i < guards->check_count; i++)
        if (add_shortcut(guards, &guards->check_steps[i]) < 0) return -1;
    return read_outputs(guards);
}
