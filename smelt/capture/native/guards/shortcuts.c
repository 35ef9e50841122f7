/* Shortcuts: native sufficient conditions for checks that are Python functions over many tensors. Where a shortcut
 * cannot confirm the check, the Python function is called. */
#include "shortcuts.h"

typedef struct {
    uintptr_t start, end; /* address of the first byte, address after the last byte */
} Span;

struct Shortcut {
    int which;
    Py_ssize_t count;
    TensorSpec **specs; /* borrowed from Guards.checks: the specs that the tensors match by earlier checks */
    int32_t *fetches;   /* indices of the tensors' fetches */
    int32_t *order;     /* DISJOINT: indices by address, as last sorted */
    Span *spans;
    SizeProgram *sizes; /* if set, evaluated in place of `which` */
};

Shortcut *shortcut_new(int which, PyObject *indices, TensorSpec **specs) {
    Py_ssize_t count = PyTuple_GET_SIZE(indices);
    Shortcut *shortcut = PyMem_Calloc(1, sizeof(Shortcut));
    if (!shortcut) return (Shortcut *)PyErr_NoMemory();
    *shortcut = (Shortcut){.which = which, .count = count};
    shortcut->specs = PyMem_Malloc((size_t)(count + 1) * sizeof(TensorSpec *));
    shortcut->fetches = PyMem_Malloc((size_t)(count + 1) * sizeof(int32_t));
    shortcut->order = PyMem_Malloc((size_t)(count + 1) * sizeof(int32_t));
    shortcut->spans = PyMem_Malloc((size_t)(count + 1) * sizeof(Span));
    if (!shortcut->specs || !shortcut->fetches || !shortcut->order || !shortcut->spans) {
        shortcut_free(shortcut);
        return (Shortcut *)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        shortcut->specs[i] = specs[i];
        shortcut->fetches[i] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(indices, i));
        shortcut->order[i] = (int32_t)i;
    }
    return shortcut;
}

Shortcut *shortcut_of_sizes(PyObject *indices, PyObject *program) {
    Py_ssize_t count = PyTuple_GET_SIZE(indices);
    Shortcut *shortcut = PyMem_Calloc(1, sizeof(Shortcut));
    if (!shortcut) return (Shortcut *)PyErr_NoMemory();
    shortcut->fetches = PyMem_Malloc((size_t)(count + 1) * sizeof(int32_t));
    shortcut->sizes = shortcut->fetches ? size_program_new(program, count) : (SizeProgram *)PyErr_NoMemory();
    if (!shortcut->sizes) {
        shortcut_free(shortcut);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) shortcut->fetches[i] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(indices, i));
    return shortcut;
}

void shortcut_free(Shortcut *shortcut) {
    if (!shortcut) return;
    PyMem_Free(shortcut->sizes);
    PyMem_Free(shortcut->specs);
    PyMem_Free(shortcut->fetches);
    PyMem_Free(shortcut->order);
    PyMem_Free(shortcut->spans);
    PyMem_Free(shortcut);
}

/* The address of a tensor's first element; 0 if it is not known or the tensor has no elements. */
static inline uintptr_t first_element(const char *impl, int64_t size) {
    const char *storage = (const char *)word(impl + layout.storage);
    uintptr_t data = storage ? word(storage + layout.data) : 0;
    return data ? data + word(impl + layout.storage_offset) * (uint64_t)size : 0;
}

/* -- DISJOINT: no shared memory----------------------------------------------------------------- */
/* Sets the span of a tensor's memory, which is empty for a tensor without elements. Returns 0 if it is not known. */
static int span_of(const TensorSpec *spec, PyObject *tensor, Span *span) {
    const char *impl = impl_of(tensor);
    int64_t ndim = spec->ndim, last = 0;
    const int64_t *sizes = sizes_of(impl, ndim), *strides = strides_of(sizes, ndim);
    *span = (Span){0, 0};
    for (int64_t i = 0; i < ndim; i++) {
        if (sizes[i] == 0) return 1;
        last += (sizes[i] - 1) * strides[i]; /* strides of tensors are never negative */
    }
    span->start = first_element(impl, spec->itemsize);
    span->end = span->start + (uint64_t)(last + 1) * (uint64_t)spec->itemsize;
    return span->start != 0;
}

static int are_disjoint_in_order(const Shortcut *shortcut) {
    uintptr_t end = 0;
    for (Py_ssize_t i = 0; i < shortcut->count; i++) {
        const Span *span = &shortcut->spans[shortcut->order[i]];
        if (span->end == 0) continue;
        if (span->start < end) return 0;
        end = span->end;
    }
    return 1;
}

static int by_start(const void *a, const void *b, void *spans) {
    uintptr_t first = ((Span *)spans)[*(const int32_t *)a].start, second = ((Span *)spans)[*(const int32_t *)b].start;
    return first < second ? -1 : first > second;
}

static int are_disjoint(Shortcut *shortcut, PyObject **values) {
    for (Py_ssize_t i = 0; i < shortcut->count; i++) {
        Py_ssize_t later = i + LOOK_AHEAD < shortcut->count ? i + LOOK_AHEAD : i;
        __builtin_prefetch((const char *)word(impl_of(values[shortcut->fetches[later]]) + layout.storage));
        if (!span_of(shortcut->specs[i], values[shortcut->fetches[i]], &shortcut->spans[i])) return 0;
    }
    if (are_disjoint_in_order(shortcut)) return 1;
    qsort_r(shortcut->order, (size_t)shortcut->count, sizeof *shortcut->order, by_start, shortcut->spans);
    return are_disjoint_in_order(shortcut);
}

/* -- EQUAL_NUMBERS: all tensors contain the same number ---------------------------------------- */
static int number_of(const TensorSpec *spec, PyObject *tensor, double *number) {
    const char *impl = impl_of(tensor);
    const int64_t *sizes = sizes_of(impl, spec->ndim);
    for (int64_t i = 0; i < spec->ndim; i++)
        if (sizes[i] != 1) return 0;
    const char *at = (const char *)first_element(impl, spec->itemsize);
    if (!at) return 0;
    float single;
    if (spec->itemsize == sizeof single) memcpy(&single, at, sizeof single), *number = single;
    else memcpy(number, at, sizeof *number);
    return 1;
}

static int are_equal_numbers(const Shortcut *shortcut, PyObject **values) {
    double first, other;
    const TensorSpec *like = shortcut->specs[0];
    if (!like->is_float_on_cpu || !number_of(like, values[shortcut->fetches[0]], &first)) return 0;
    for (Py_ssize_t i = 1; i < shortcut->count; i++) {
        const TensorSpec *spec = shortcut->specs[i];
        /* with equal dispatch keys, either all of them are lazy negative views or none is */
        if (!spec->is_float_on_cpu || spec->keys != like->keys) return 0;
        if (!number_of(spec, values[shortcut->fetches[i]], &other) || first != other) return 0;
    }
    return 1;
}

/* -- NO_HOOKS ---------------------------------------------------------------------------------- */
static inline int is_empty(PyObject *tensor, Py_ssize_t at) {
    PyObject *hooks = *(PyObject **)((char *)tensor + at);
    return !hooks || hooks == Py_None || (PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0);
}

static int have_no_hooks(const Shortcut *shortcut, PyObject **values) {
    for (Py_ssize_t i = 0; i < shortcut->count; i++) {
        PyObject *tensor = values[shortcut->fetches[i]];
        if (!is_empty(tensor, layout.hooks) || !is_empty(tensor, layout.late_hooks)) return 0;
    }
    return 1;
}

int shortcut_holds(Shortcut *shortcut, PyObject **values) {
    if (shortcut->sizes) return size_program_holds(shortcut->sizes, shortcut->fetches, values);
    switch (shortcut->which) {
    case S_DISJOINT: return layout.storage && are_disjoint(shortcut, values);
    case S_EQUAL_NUMBERS: return layout.storage && are_equal_numbers(shortcut, values);
    case S_NO_HOOKS: return layout.hooks && have_no_hooks(shortcut, values);
    }
    return 0;
}
