/* The PEP 523 evaluator. On a hit, the code of the frame is replaced by the entry's. `resume` fills a new frame of the
 * original code and sets its instruction pointer. Replacing the code does not change who clears the frame: on 3.11 the
 * caller of the evaluator, from 3.12 on the evaluator itself. */
#include "native.h"
#include <opcode.h>
#include "versions.h"

/* Frames run in CPython's evaluator, not in one that was installed before ours: that one may have recorded ours as its
   predecessor, and the two would call each other endlessly. */
#define run_frame _PyEval_EvalFrameDefault

static _PyFrameEvalFunction before; /* the evaluator installed before ours, restored on uninstall */
static PyObject *frame_callback, *resume_callback, *watch_callback; /* strong, NULL when unset */
static int watched; /* a frame ran uncompiled because a debugger or coverage tool follows its lines */
/* tuples of file name prefixes: `prefixes` for frames that run uncompiled, `quiet_ones` for those below which all
 * frames do */
static PyObject *prefixes, *quiet_ones;
#if PY_VERSION_HEX >= 0x030c0000
static PyCodeObject *return_none; /* code of `lambda: None` */
#endif

/* State handed to the next frame of `code`: either its variables and stack (a resumed frame), or only the references
   that would keep the arguments alive longer than the frame does (a replacement, which has them as its arguments). */
struct Injection {
    /* code: of the called function; original: the code to run in its frame, NULL for a replacement */
    PyCodeObject *code, *original;
    PyObject **values;             /* owned: slots, then stack; set to NULL when the frame takes them over */
    Py_ssize_t count;
    int offset, moves; /* moves: arguments are moved into a call of any function, whose code is `code` */
    int waits;         /* whether the frame has yet to start */
};

static PyObject *evaluate_frame(PyThreadState *state, Frame *frame, int throwing);
static PyObject *finish(PyObject *result);

static int other_is_there; /* whether another evaluator was seen; either of the two may be installed last */

void evaluator_install(void) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current == evaluate_frame) return;
    other_is_there |= current != run_frame;
    before = current;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate_frame);
}

void evaluator_uninstall(void) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    /* an evaluator installed after ours stays; inactive threads pass through ours if it chains to it */
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate_frame)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, before);
}

/* -- another compiler's evaluator ---------------------------------------------------------------- */

/* torch.compile installs its evaluator while some thread has a callback for new frames. If it is installed over ours,
 * it passes frames on to ours. Unless its callback is disabled, it would compile the functions that our callback runs,
 * and ours would compile its functions. */
static PyObject *get_other, *set_other, *other_left; /* get() -> callback, set(callback) -> previous callback; strong */

/* Whether another compiler compiles the frames that this thread starts. -1: the query raised. */
static int other_compiles(PyThreadState *state) {
    _PyFrameEvalFunction first = _PyInterpreterState_GetEvalFrameFunc(state->interp);
    other_is_there |= first != evaluate_frame && first != run_frame;
    if (!other_is_there || !get_other) return 0;
    PyObject *callback = PyObject_CallNoArgs(get_other);
    int compiles = callback ? callback != Py_None : -1;
    Py_XDECREF(callback);
    return compiles;
}

/* Disables the other compiler's callback in this thread until `other_continues`. Returns that callback, None if it had
   none, NULL with an exception on failure. */
PyObject *other_pauses(void) {
    int compiles = other_compiles(PyThreadState_Get());
    if (compiles < 0) return NULL;
    if (!compiles) return Py_NewRef(Py_None);
    PyObject *callback = PyObject_CallOneArg(set_other, Py_None);
    PyObject *heard = callback ? PyObject_CallNoArgs(other_left) : NULL;
    if (!heard && callback) {
        other_continues(callback);
        return NULL;
    }
    Py_XDECREF(heard);
    return callback;
}

/* Restores the other compiler's callback. Steals `callback`; a raised exception stays set. */
void other_continues(PyObject *callback) {
    if (callback != Py_None) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        Py_XDECREF(PyObject_CallOneArg(set_other, callback));
        PyErr_Restore(type, error, traceback);
    }
    Py_DECREF(callback);
}

static PyObject *set_other_compiler(PyObject *module, PyObject *args) {
    PyObject *get, *set, *left;
    if (!PyArg_ParseTuple(args, "OOO", &get, &set, &left)) return NULL;
    Py_XSETREF(get_other, Py_NewRef(get));
    Py_XSETREF(set_other, Py_NewRef(set));
    Py_XSETREF(other_left, Py_NewRef(left));
    Py_RETURN_NONE;
}

/* -- running a replacement --------------------------------------------------------------------- */

/* Makes later frames of `original` large enough for `replacement`. */
void frame_reserve(PyCodeObject *original, PyCodeObject *replacement) {
    int missing = frame_words(replacement) - frame_words(original);
    if (missing > 0) grow_frame_words(original, missing);
}

/* Extends the topmost frame to the size of `code`. Its size may be too small if the replacement was compiled during
   this call. It was pushed last, so it ends at the top of the data stack. Returns 0 if the chunk of the data stack has
   no room for it. */
static inline int make_room(PyThreadState *state, Frame *frame, PyCodeObject *code) {
    PyObject **end = (PyObject **)frame + frame_words(code);
    if (end > state->datastack_top && end >= state->datastack_limit) return 0;
    state->datastack_top = end;
    return 1;
}

/* Clears a replacement's variables from `first` on: first those for the original's stack, from its top, then the
   replacement's own variables in the order of their assignment, so that containers are freed before their contents, as
   in eager. */
static void forget_from(PyCodeObject *replacement, Frame *frame, Py_ssize_t first) {
    for (Py_ssize_t i = replacement->co_argcount - 1; i >= first; i--) Py_CLEAR(frame->localsplus[i]);
    for (int i = replacement->co_argcount; i < replacement->co_nlocalsplus; i++) Py_CLEAR(frame->localsplus[i]);
}

/* After an exception left a replacement's frame: clears the variables from `arity` on (the original's stack and the
   replacement's own variables), which the traceback would keep alive. */
static void forget_stack(PyCodeObject *replacement, Frame *ran, Py_ssize_t arity) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    Frame *frame = traceback && PyTraceBack_Check(traceback) ? ((PyTracebackObject *)traceback)->tb_frame->f_frame : NULL;
    if (frame && FRAME_CODE(frame) == replacement && (frame == ran || frame->owner == FRAME_OWNED_BY_FRAME_OBJECT))
        forget_from(replacement, frame, arity);
    PyErr_Restore(type, error, traceback);
}

/* Steals `outputs`. */
static inline PyObject *run_swapped(PyThreadState *state, Frame *frame, CacheEntry *entry, Py_ssize_t arity,
                                    PyObject *outputs) {
    PyCodeObject *original = FRAME_CODE(frame), *code = entry->replacement;
    /* before the original's first instruction, its cells and free variables do not exist: all slots after the arguments
       are NULL, up to its co_nlocalsplus */
    frame->localsplus[arity] = Py_NewRef(entry->constants);
    frame->localsplus[arity + 1] = outputs;
    for (int i = (int)arity + 2; i < code->co_nlocalsplus; i++) frame->localsplus[i] = NULL;
    frame->stacktop = code->co_nlocalsplus;
    FRAME_SET_CODE(frame, Py_NewRef(code));
    FRAME_SET_NEXT(frame, _PyCode_CODE(code));
    Py_DECREF(original);
    PyObject *handled = handled_now(), *result = run_frame(state, frame, 0);
    handled_restore(handled); /* a signal handler may have raised while the replacement had set another exception */
    if (!result) forget_stack(code, frame, arity);
    return result;
}

/* Clears a frame whose result is known although it did not run, as its evaluator would. */
static PyObject *leave_frame(PyThreadState *state, Frame *frame, PyObject *result) {
#if PY_VERSION_HEX >= 0x030c0000
    if (!result) return run_frame(state, frame, 1); /* unwinds and clears */
    PyCodeObject *original = FRAME_CODE(frame);
    for (int i = 0; i < original->co_nlocalsplus; i++) Py_CLEAR(frame->localsplus[i]);
    frame->stacktop = 0;
    FRAME_SET_CODE(frame, Py_NewRef(return_none));
    FRAME_SET_NEXT(frame, _PyCode_CODE(return_none));
    Py_DECREF(original);
    PyObject *none = run_frame(state, frame, 0);
    if (!none) Py_CLEAR(result); /* a signal handler raised */
    Py_XDECREF(none);
#endif
    return result;
}

static void drop(PyObject **values, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) Py_CLEAR(values[i]);
}

/* Keeps the evaluator installed until the frame of an injection has started, even if no stack stays active. */
static void keep_evaluator_for(Injection *injection) {
    injection->waits = 1;
    evaluator_acquire();
}

static void release_evaluator_for(Injection *injection) {
    injection->waits = 0;
    evaluator_release();
}

static PyObject *call_injected(Injection *injection, PyObject *function, PyObject *const *args, size_t count,
                               PyObject *names) {
    Injection *outer = stack_now()->injection;
    thread.stack.injection = injection;
    keep_evaluator_for(injection);
    PyObject *result = PyObject_Vectorcall(function, args, count, names);
    if (injection->waits) release_evaluator_for(injection); /* the call failed before the frame started */
    stack_now()->injection = outer;
    return result;
}

/* Calls the replacement as a function: f(*values, constants, outputs). Moves the values out of their array and steals
 * `outputs`, so that only the called function keeps its arguments alive. The first `arity` values are the original's
 * variables. */
static PyObject *run_replacement(CacheEntry *entry, PyObject *globals, PyObject **values, Py_ssize_t count,
                                 PyObject *outputs, Py_ssize_t arity) {
    PyObject *function = entry_function(entry, globals), **args = NULL, *result = NULL;
    if (function && !(args = PyMem_Malloc((size_t)(count + 2) * sizeof(PyObject *)))) PyErr_NoMemory();
    if (!args) {
        Py_DECREF(outputs);
        return NULL;
    }
    memcpy(args, values, (size_t)count * sizeof(PyObject *));
    memset(values, 0, (size_t)count * sizeof(PyObject *));
    args[count] = Py_NewRef(entry->constants);
    args[count + 1] = outputs;
    Injection injection = {entry->replacement, NULL, args, count + 2, 0, 0};
    Py_INCREF(function); /* the entry may replace its function by one for other globals */
    PyObject *handled = handled_now();
    result = call_injected(&injection, function, args, (size_t)count + 2, NULL);
    handled_restore(handled);
    if (!result) forget_stack(entry->replacement, NULL, arity);
    Py_DECREF(function);
    drop(args, count + 2);
    PyMem_Free(args);
    return result;
}

/* Runs the replacement in a new frame if the present one cannot be extended. Steals `outputs`. */
static PyObject *run_called(PyThreadState *state, Frame *frame, CacheEntry *entry, Py_ssize_t arity, PyObject *outputs) {
    return leave_frame(state, frame, run_replacement(entry, frame->f_globals, frame->localsplus, arity, outputs, arity));
}

/* -- finding an entry -------------------------------------------------------------------------- */
static enum Outcome look_up(CompileSite *site, const Scope *scope, CacheEntry **entry, PyObject **outputs) {
    if (!site->count) return MISS;
    thread.stack.active = 0; /* guards may run Python code, whose frames must not be compiled */
    enum Outcome outcome = site_lookup(site, scope, entry, outputs);
    stack_now()->active = 1;
    return outcome;
}

/* The slots as a tuple for callbacks. */
static PyObject *tuple_of(PyObject *const *slots, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(slots[i] ? slots[i] : smelt_null));
    return tuple;
}

/* Calls callback(key, func, slots, globals, builtins) with the hook inactive; NULL when it raised. */
static PyObject *call_back(PyObject *callback, PyObject *key, const Scope *scope) {
    PyObject *slots = tuple_of(scope->slots, scope->count);
    if (!slots) return NULL;
    PyObject *func = scope->func ? scope->func : Py_None;
    PyObject *args[] = {key, func, slots, scope->globals, scope->builtins};
    Py_INCREF(callback); /* it may unset itself */
    set_active(0);
    PyObject *result = PyObject_Vectorcall(callback, args, 5, NULL);
    set_active(1);
    Py_DECREF(callback);
    Py_DECREF(slots);
    return result;
}

/* Looks up the entries; on a miss, calls the callback and looks them up once more. If that is a MISS too, `after` gets
 * the callback's result for `notify_returned`, unless it is NULL. */
static enum Outcome find(CompileSite *site, PyObject *key, PyObject *callback, const Scope *scope, CacheEntry **entry,
                         PyObject **outputs, PyObject **after) {
    *after = NULL;
    enum Outcome outcome = look_up(site, scope, entry, outputs);
    if (outcome != MISS || !callback) return outcome;
    PyObject *wants = call_back(callback, key, scope);
    if (!wants) return RAISED;
    outcome = site->skipped ? MISS : look_up(site, scope, entry, outputs);
    if (outcome == MISS && wants != Py_None) *after = wants;
    else Py_DECREF(wants);
    return outcome;
}

/* Calls the function that the frame callback returned, after the original frame has returned `result`; does not call
 * it if `result` is NULL (an exception). */
static PyObject *notify_returned(PyObject *after, PyObject *result) {
    if (!after) return result;
    if (result) {
        int active = set_active(0);
        PyObject *heard = PyObject_CallNoArgs(after);
        set_active(active);
        if (!heard) Py_CLEAR(result);
        Py_XDECREF(heard);
    }
    Py_DECREF(after);
    return result;
}

static int starts_with_any(PyObject *text, PyObject *tuple) {
    for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(tuple); i++)
        if (PyUnicode_Tailmatch(text, PyTuple_GET_ITEM(tuple, i), 0, PY_SSIZE_T_MAX, -1) == 1) return 1;
    return 0;
}

/* Makes the site of a code object that an active thread runs for the first time. NULL with an exception when out of
 * memory. */
static CompileSite *meet(PyCodeObject *code) {
    CompileSite *site = site_make(code);
    if (!site) return NULL;
    /* module and class bodies keep their variables in a dict and not in slots */
    if (!(code->co_flags & CO_OPTIMIZED)) site->skipped = NEVER;
    if (!site->skipped && starts_with_any(code->co_filename, prefixes))
        site->skipped = starts_with_any(code->co_filename, quiet_ones) ? QUIET : NEVER;
    return site;
}

/* -- tracebacks -------------------------------------------------------------------------------- */
/* The byte offset in `code` of the instruction that has the source position of `offset` in a replacement; -1 if there
 * is no such instruction. */
static int instruction_at(PyCodeObject *replacement, int offset, PyCodeObject *code) {
    int said[4], found[4];
    if (offset < 0 || !PyCode_Addr2Location(replacement, offset, &said[0], &said[1], &said[2], &said[3])) return -1;
    for (int at = 0; at < (int)(Py_SIZE(code) * sizeof(_Py_CODEUNIT)); at += (int)sizeof(_Py_CODEUNIT))
        if (PyCode_Addr2Location(code, at, &found[0], &found[1], &found[2], &found[3]) &&
            !memcmp(said, found, sizeof said))
            return at;
    return -1;
}

/* Replaces the frame `before`, which caught `error`, by the frame object `now`, in which execution continues, in the
   traceback of `error`. The traceback then keeps `now` and its variables alive, as if one frame had run throughout. */
static int hand_over(PyObject *error, PyObject *before, PyObject *now) {
    PyTracebackObject *head = (PyTracebackObject *)((PyBaseExceptionObject *)error)->traceback;
    if (!head || !PyTraceBack_Check(head) || (PyObject *)head->tb_frame != before) return 0;
    PyObject *line = PyObject_GetAttrString((PyObject *)head, "tb_lineno");
    if (!line) return -1;
    head->tb_lineno = line == Py_None ? 0 : (int)PyLong_AsLong(line);
    Py_DECREF(line);
    PyFrameObject *handed = head->tb_frame;
    PyCodeObject *left = PyFrame_GetCode(handed), *code = PyFrame_GetCode((PyFrameObject *)now);
    int offset = head->tb_lasti; /* in a replacement, offsets in the original are encoded as -2 - offset */
    if (offset < -1) offset = -2 - offset;
    else if (left != thread.stack.original) offset = instruction_at(left, offset, thread.stack.original);
    head->tb_lasti = code == thread.stack.original || offset < 0 ? offset : -2 - offset;
    Py_DECREF(left);
    Py_DECREF(code);
    head->tb_frame = (PyFrameObject *)Py_NewRef(now);
    Py_DECREF(handed);
    return 0;
}

/* The frame object of a frame that is filled and about to run; a new reference. */
static PyObject *frame_object(PyThreadState *state, Frame *frame) {
    Frame *before = CURRENT_FRAME(state);
    frame->previous = before;
    CURRENT_FRAME(state) = frame;
    PyObject *object = (PyObject *)PyThreadState_GetFrame(state);
    CURRENT_FRAME(state) = before;
    return object;
}

/* Moves the tracebacks of exceptions that the filled `frame` handles from the frame that it continues to `frame`. The
   exceptions are on its stack, except the innermost one, which an except clause may have popped. */
static int take_tracebacks(PyThreadState *state, Frame *frame, Py_ssize_t count) {
    PyObject *before = stack_of(state)->continues;
    int failed = 0;
    for (Py_ssize_t i = FRAME_CODE(frame)->co_nlocalsplus; before && !failed && i <= count; i++) {
        PyObject *error = i < count ? frame->localsplus[i] : state->exc_info->exc_value;
        if (!error || !PyExceptionInstance_Check(error)) continue;
        PyObject *object = frame_object(state, frame);
        failed = !object || hand_over(error, before, object) < 0;
        Py_XDECREF(object);
    }
    return failed ? -1 : 0;
}

/* Puts the calling frame, a replacement, into the traceback of `error` in place of the frame that caught it. */
static PyObject *stand_for(PyObject *module, PyObject *error) {
    PyObject *before = stack_now()->continues;
    if (!before || !PyExceptionInstance_Check(error)) Py_RETURN_NONE;
    PyObject *object = (PyObject *)PyThreadState_GetFrame(PyThreadState_Get());
    int failed = !object || hand_over(error, before, object) < 0;
    Py_XDECREF(object);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* -- injecting a frame ------------------------------------------------------------------------- */
static PyObject *run_injected(PyThreadState *state, Frame *frame, Injection *injection) {
    PyCodeObject *code = injection->code;
    if (!injection->original) {
        drop(injection->values, injection->count);
        return run_frame(state, frame, 0);
    }
    for (Py_ssize_t i = 0; i < injection->count; i++) {
        PyObject *value = injection->values[i];
        injection->values[i] = NULL;
        frame->localsplus[i] = value == smelt_null ? NULL : value;
        if (value == smelt_null) Py_DECREF(value);
    }
    frame->stacktop = (int)injection->count;
    /* `super()` reads the code's argument count, debuggers the code itself */
    FRAME_SET_CODE(frame, Py_NewRef(injection->original));
    FRAME_SET_NEXT(frame, _PyCode_CODE(injection->original) + injection->offset / (int)sizeof(_Py_CODEUNIT));
    Py_DECREF(code);
    return take_tracebacks(state, frame, injection->count) < 0 ? leave_frame(state, frame, NULL)
                                                                : run_frame(state, frame, 0);
}

static int call_quietly(PyObject *callback) {
    set_active(0);
    PyObject *result = PyObject_CallNoArgs(callback);
    set_active(1);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* -- frames that C code starts inside of `lend` ------------------------------------------------- */

/* Asks the lender for the frame's result, unless its code runs uncaptured. */
static PyObject *evaluate_lent(PyThreadState *state, Frame *frame) {
    PyCodeObject *code = FRAME_CODE(frame);
    CompileSite *site = site_find((PyObject *)code);
    if (!site) site = meet(code); /* makes the site here, since a code object without a site would be captured later */
    if (!site) return leave_frame(state, frame, NULL);
    if (site->unlent || !(code->co_flags & CO_OPTIMIZED) || FRAME_NEXT(frame) != _PyCode_CODE(code) ||
        lines_are_watched(state))
        return run_frame(state, frame, 0);
    PyObject *slots = tuple_of(frame->localsplus, site->arity), *lender = thread.stack.lender;
    if (!slots) return leave_frame(state, frame, NULL);
    thread.stack.lender = NULL;
    PyObject *args[] = {FRAME_FUNC(frame), slots}, *result = PyObject_Vectorcall(lender, args, 2, NULL);
    stack_of(state)->lender = lender;
    Py_DECREF(slots);
    if (result != smelt_null) return leave_frame(state, frame, result);
    Py_DECREF(result);
    site->unlent = 1;
    return run_frame(state, frame, 0);
}

static PyObject *run_quietly(PyThreadState *state, Frame *frame) {
    set_active(0);
    PyObject *result = run_frame(state, frame, 0);
    set_active(1);
    return result;
}

/* -- the evaluator ----------------------------------------------------------------------------- */
static PyObject *evaluate_frame(PyThreadState *state, Frame *frame, int throwing) {
    Stack *self = stack_of(state);
    if (self->lender && !throwing && frame->owner == FRAME_OWNED_BY_THREAD) return evaluate_lent(state, frame);
    if ((!self->active && !self->injection) || throwing || frame->owner != FRAME_OWNED_BY_THREAD)
        return run_frame(state, frame, throwing);
    PyCodeObject *code = FRAME_CODE(frame);
    if (self->injection && self->injection->code == code) {
        Injection *injection = self->injection;
        self->injection = NULL;
        release_evaluator_for(injection);
        if (!injection->moves) return run_injected(state, frame, injection);
        drop(injection->values, injection->count);
        if (!self->active) return run_frame(state, frame, 0);
    }
    CompileSite *site = site_find((PyObject *)code);
    /* Calls of Python functions use C stack while the evaluator is installed, and none without it: frames beyond half
       of the C stack run uncompiled, so that recursion reaches the depth that it has without smelt. */
    if (self->active && ((site && site->skipped == QUIET) || stack_is_short(state))) return run_quietly(state, frame);
    if ((site && site->skipped) || !self->active || FRAME_NEXT(frame) != _PyCode_CODE(code))
        return run_frame(state, frame, 0);
    if (state->tracing > self->tracing) return run_quietly(state, frame); /* a hook for audits or profiles is running */
    int compiles = other_compiles(state);
    if (compiles) return compiles < 0 ? leave_frame(state, frame, NULL) : run_frame(state, frame, 0);
    if (lines_are_watched(state)) {
        if (!watched && watch_callback) {
            watched = 1;
            if (call_quietly(watch_callback) < 0) return leave_frame(state, frame, NULL);
        }
        return run_frame(state, frame, 0);
    }
    if (!site) {
        site = meet(code);
        if (!site) return leave_frame(state, frame, NULL);
        if (site->skipped) return site->skipped == QUIET ? run_quietly(state, frame) : run_frame(state, frame, 0);
    }
    Scope scope = {frame->localsplus, site->arity, frame->f_globals, frame->f_builtins, FRAME_FUNC(frame)};
    CacheEntry *entry;
    PyObject *outputs, *after;
    enum Outcome outcome = find(site, (PyObject *)code, frame_callback, &scope, &entry, &outputs, &after);
    if (outcome == MISS && after == Py_False) {
        Py_DECREF(after);
        return run_quietly(state, frame);
    }
    if (outcome == MISS) return notify_returned(after, run_frame(state, frame, 0));
    if (outcome == RAISED) return leave_frame(state, frame, NULL);
    int fits = make_room(state, frame, entry->replacement);
    PyObject *result = (fits ? run_swapped : run_called)(state, frame, entry, site->arity, outputs);
    Py_DECREF(entry);
    return finish(result);
}

/* -- resume ------------------------------------------------------------------------------------ */

/* Whether the slot is a variable of an inlined comprehension, in which it contains plain values, although it is a cell
 * elsewhere. */
static int of_a_comprehension(PyCodeObject *code, Py_ssize_t slot) {
#if PY_VERSION_HEX >= 0x030c0000
    for (Py_ssize_t i = 0; i < Py_SIZE(code); i++) {
        _Py_CODEUNIT unit = _PyCode_CODE(code)[i];
        if (unit.op.code == LOAD_FAST_AND_CLEAR && unit.op.arg == (slot & 255)) return 1;
    }
#endif
    return 0;
}

/* Whether the slots of cell and free variables contain cells, since CPython dereferences them unchecked. */
int slots_are_cells(PyCodeObject *code, PyObject *slots) {
    const char *kinds = PyBytes_AS_STRING(code->co_localspluskinds);
    for (Py_ssize_t i = 0; i < code->co_nlocalsplus; i++) {
        PyObject *value = PyList_GET_ITEM(slots, i);
        if (!(kinds[i] & (CO_FAST_CELL | CO_FAST_FREE)) || PyCell_Check(value)) continue;
        if (value == smelt_null && !(kinds[i] & CO_FAST_FREE)) continue; /* the cell does not exist yet */
        if (!(kinds[i] & CO_FAST_FREE) && of_a_comprehension(code, i)) continue;
        PyErr_Format(PyExc_ValueError, "slot %zd (%R) must be a cell, got %s", i,
                     PyTuple_GET_ITEM(code->co_localsplusnames, i), Py_TYPE(value)->tp_name);
        return 0;
    }
    return 1;
}

static PyObject *injected_function(ResumePoint *point, PyObject *globals, PyObject *func) {
    PyObject *closure = func ? PyFunction_GET_CLOSURE(func) : NULL;
    PyObject *function = point->function;
    if (!function || PyFunction_GET_GLOBALS(function) != globals) {
        function = PyFunction_New((PyObject *)point->injected, globals);
        if (!function) return NULL;
        Py_XSETREF(point->function, function);
    }
    /* only tracebacks and debuggers read the closure: the frame's free variables are among the slots */
    if (closure != PyFunction_GET_CLOSURE(function) && PyFunction_SetClosure(function, closure ? closure : Py_None) < 0)
        return NULL;
    return function;
}

static PyObject *run_at(ResumePoint *point, PyObject *globals, PyObject *func, PyObject **values, Py_ssize_t count) {
    PyObject *function = injected_function(point, globals, func);
    if (!function) return NULL;
    Injection injection = {point->injected, point->code, values, count, point->offset, 0};
    Py_INCREF(function);
    PyObject *result = call_injected(&injection, function, NULL, 0, NULL);
    Py_DECREF(function);
    return result;
}

static PyObject *resume_active(ResumePoint *point, PyObject *globals, PyObject *func, PyObject **values,
                               Py_ssize_t count) {
    PyObject *result = NULL, *outputs, *after;
    Scope scope = {values, count, globals, scope_builtins(globals, func), func};
    CacheEntry *entry;
    enum Outcome outcome = find(&point->site, (PyObject *)point, resume_callback, &scope, &entry, &outputs, &after);
    if (outcome == HIT) {
        result = run_replacement(entry, globals, values, count, outputs, point->injected->co_nlocalsplus);
        Py_DECREF(entry);
    }
    return outcome == MISS ? notify_returned(after, run_at(point, globals, func, values, count)) : result;
}

/* The continuation of a frame. A residual that ends with a graph break returns it to the C code that runs the frame, so
   that a loop with a break in each iteration needs no deeper stack than the program itself. */
typedef struct {
    PyObject_HEAD
    ResumePoint *point;
    PyObject *globals, *func; /* func: NULL outside of functions */
    PyObject **values;        /* slots, then stack; moved values are NULL */
    Py_ssize_t count;
    PyObject *handled; /* the exception handled at the resume point, or NULL */
    PyObject *before;  /* the frame object of the residual that has ended, if a traceback contains it, or NULL */
} Continuation;

static int continuation_traverse(Continuation *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)self->point);
    Py_VISIT(self->globals);
    Py_VISIT(self->func);
    for (Py_ssize_t i = 0; i < self->count; i++) Py_VISIT(self->values[i]);
    Py_VISIT(self->handled);
    Py_VISIT(self->before);
    return 0;
}

static int continuation_clear(Continuation *self) {
    Py_CLEAR(self->point);
    Py_CLEAR(self->globals);
    Py_CLEAR(self->func);
    drop(self->values, self->count);
    Py_CLEAR(self->handled);
    Py_CLEAR(self->before);
    return 0;
}

static void continuation_dealloc(Continuation *self) {
    PyObject_GC_UnTrack(self);
    continuation_clear(self);
    PyMem_Free(self->values);
    PyObject_GC_Del(self);
}

static PyTypeObject ContinuationType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.Continuation",
    .tp_doc = "the rest of a frame's execution after a graph break",
    .tp_basicsize = sizeof(Continuation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)continuation_dealloc,
    .tp_traverse = (traverseproc)continuation_traverse,
    .tp_clear = (inquiry)continuation_clear,
};

/* Clears the variables of the residual, which calls `go_on` as its last action: their values were moved into the
 * continuation. */
static void forget_variables(void) {
    Frame *frame = CURRENT_FRAME(PyThreadState_Get());
    PyCodeObject *code = FRAME_CODE(frame);
    CompileSite *site = site_find((PyObject *)code);
    if (!site || site->skipped != PINNED || frame->owner != FRAME_OWNED_BY_THREAD) return;
    forget_from(code, frame, 0);
}

/* Makes a continuation. Moves the items out of the lists, so that the resumed frame alone keeps them alive. */
static PyObject *continuation(ResumePoint *point, PyObject *globals, PyObject *func, PyObject *slots, PyObject *stack,
                              PyObject *handled) {
    Py_ssize_t first = PyList_GET_SIZE(slots), count = first + PyList_GET_SIZE(stack);
    PyObject **values = PyMem_Malloc((size_t)(count + 1) * sizeof(PyObject *));
    Continuation *self = values ? PyObject_GC_New(Continuation, &ContinuationType) : NULL;
    if (!self) {
        PyMem_Free(values);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++)
        values[i] = Py_NewRef(i < first ? PyList_GET_ITEM(slots, i) : PyList_GET_ITEM(stack, i - first));
    PyList_SetSlice(slots, 0, first, NULL);
    PyList_SetSlice(stack, 0, count - first, NULL);
    self->point = (ResumePoint *)Py_NewRef((PyObject *)point);
    self->globals = Py_NewRef(globals);
    self->func = Py_XNewRef(func);
    self->values = values;
    self->count = count;
    self->handled = handled ? Py_NewRef(PyList_GET_ITEM(handled, 0)) : NULL;
    if (handled) PyList_SetSlice(handled, 0, 1, NULL);
    Frame *caller = CURRENT_FRAME(PyThreadState_Get());
    self->before = caller ? Py_XNewRef((PyObject *)caller->frame_obj) : NULL;
    PyObject_GC_Track(self);
    forget_variables();
    return (PyObject *)self;
}

/* Runs a continuation; returns the frame's result, or its next continuation. */
static PyObject *run_continuation(Continuation *self) {
    PyObject *outer = handled_now(), *continues = stack_now()->continues, *result;
    PyCodeObject *original = thread.stack.original;
    if (self->handled) {
        handled_restore(self->handled);
        self->handled = NULL;
    }
    thread.stack.continues = self->before;
    thread.stack.original = self->point->code;
    if (!thread.stack.active || self->point->site.skipped || lines_are_watched(PyThreadState_Get()))
        result = run_at(self->point, self->globals, self->func, self->values, self->count);
    else result = resume_active(self->point, self->globals, self->func, self->values, self->count);
    Stack *stack = stack_now();
    stack->continues = continues;
    stack->original = original;
    handled_restore(outer);
    return result;
}

/* The final result of a frame whose residual returned `result`, which is stolen. */
static PyObject *finish(PyObject *result) {
    while (result && Py_TYPE(result) == &ContinuationType) {
        PyObject *next = run_continuation((Continuation *)result);
        Py_DECREF(result);
        result = next;
    }
    return result;
}

/* Calls a function as bytecode does: a Python function owns its arguments. */
static PyObject *call_moving(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyList_Check(args[1]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "call_moving(callable, list of arguments, tuple of names)");
    PyObject *callable = args[0], *names = PyTuple_GET_SIZE(args[2]) ? args[2] : NULL, *list = args[1];
    PyObject *function = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
    Py_ssize_t size = PyList_GET_SIZE(list);
    PyObject **values = PyMem_Calloc((size_t)size + 1, sizeof(PyObject *)), *result;
    if (!values) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) values[i] = Py_NewRef(PyList_GET_ITEM(list, i));
    PyList_SetSlice(list, 0, size, NULL);
    size_t given = (size_t)(size - (names ? PyTuple_GET_SIZE(names) : 0));
    if (PyFunction_Check(function)) {
        Injection injection = {(PyCodeObject *)PyFunction_GET_CODE(function), NULL, values, size, 0, 1};
        result = call_injected(&injection, callable, values, given, names);
    } else result = PyObject_Vectorcall(callable, values, given, names);
    drop(values, size);
    PyMem_Free(values);
    return result;
}

static inline int holds_exception(PyObject *list) {
    return PyList_Check(list) && PyList_GET_SIZE(list) == 1 && PyExceptionInstance_Check(PyList_GET_ITEM(list, 0));
}

static PyObject *go_on(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const char *wants = "(point: ResumePoint, globals: dict, func: function or None, slots: list, stack: list"
                        "[, [handled exception]]) are wanted";
    if (count != 5 && count != 6) return PyErr_Format(PyExc_TypeError, "%s", wants);
    PyObject *globals = args[1], *func = args[2] == Py_None ? NULL : args[2], *slots = args[3], *stack = args[4];
    if (!PyObject_TypeCheck(args[0], &ResumePointType) || !PyDict_Check(globals) || (func && !PyFunction_Check(func)) ||
        !PyList_Check(slots) || !PyList_Check(stack) || (count == 6 && !holds_exception(args[5])))
        return PyErr_Format(PyExc_TypeError, "%s", wants);
    ResumePoint *point = (ResumePoint *)args[0];
    if (PyList_GET_SIZE(slots) != point->injected->co_nlocalsplus || PyList_GET_SIZE(stack) != point->depth)
        return PyErr_Format(PyExc_ValueError, "%d slots and %zd stack elements are wanted, got %zd and %zd",
                            point->injected->co_nlocalsplus, point->depth, PyList_GET_SIZE(slots),
                            PyList_GET_SIZE(stack));
    if (!slots_are_cells(point->injected, slots)) return NULL;
    return continuation(point, globals, func, slots, stack, count == 6 ? args[5] : NULL);
}

static PyObject *resume(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    return finish(go_on(module, args, count));
}

/* -- the rest of the module's functions -------------------------------------------------------- */
static PyObject *set_one(PyObject **where, PyObject *callback) {
    if (callback != Py_None && !PyCallable_Check(callback))
        return PyErr_Format(PyExc_TypeError, "a callback must be callable or None, not %s", Py_TYPE(callback)->tp_name);
    Py_XSETREF(*where, callback == Py_None ? NULL : Py_NewRef(callback));
    Py_RETURN_NONE;
}

static PyObject *set_callback(PyObject *module, PyObject *cb) { return set_one(&frame_callback, cb); }
static PyObject *set_resume_callback(PyObject *module, PyObject *cb) { return set_one(&resume_callback, cb); }

static PyObject *set_watch_callback(PyObject *module, PyObject *cb) { return set_one(&watch_callback, cb); }

static PyObject *set_prefixes(PyObject **slot, PyObject *sequence) {
    PyObject *tuple = PySequence_Tuple(sequence);
    if (!tuple) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (!PyUnicode_Check(PyTuple_GET_ITEM(tuple, i))) {
            PyErr_Format(PyExc_TypeError, "prefix %zd is not a str", i);
            Py_DECREF(tuple);
            return NULL;
        }
    Py_XSETREF(*slot, tuple);
    Py_RETURN_NONE;
}

static PyObject *skip_prefixes(PyObject *module, PyObject *sequence) { return set_prefixes(&prefixes, sequence); }
static PyObject *quiet_prefixes(PyObject *module, PyObject *sequence) { return set_prefixes(&quiet_ones, sequence); }

static PyObject *snapshot(PyObject *module, PyObject *args) {
    PyObject *object;
    int depth;
    if (!PyArg_ParseTuple(args, "O!i", &PyFrame_Type, &object, &depth)) return NULL;
    Frame *frame = ((PyFrameObject *)object)->f_frame;
    int slots = FRAME_CODE(frame)->co_nlocalsplus;
    PyObject *lists[] = {PyList_New(slots), PyList_New(depth)};
    for (int i = 0; lists[0] && lists[1] && i < slots + depth; i++) {
        PyObject *value = frame->localsplus[i] ? frame->localsplus[i] : smelt_null;
        PyList_SET_ITEM(lists[i >= slots], i < slots ? i : i - slots, Py_NewRef(value));
    }
    if (!lists[0] || !lists[1]) {
        Py_XDECREF(lists[0]);
        Py_XDECREF(lists[1]);
        return NULL;
    }
    return Py_BuildValue("(NN)", lists[0], lists[1]);
}

int frame_ready(void) {
    if (PyType_Ready(&ContinuationType) < 0) return -1;
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *globals = PyDict_New();
    PyObject *function = globals ? PyRun_String("lambda: None", Py_eval_input, globals, globals) : NULL;
    Py_XDECREF(globals);
    if (!function) return -1;
    return_none = (PyCodeObject *)Py_NewRef(PyFunction_GET_CODE(function));
    Py_DECREF(function);
#endif
    return 0;
}

PyMethodDef frame_methods[] = {
    {"set_callback", set_callback, METH_O, "set_callback(cb or None): called for frames without a matching entry; if it returns False, the frame and all below it run uncompiled"},
    {"set_resume_callback", set_resume_callback, METH_O, "set_resume_callback(cb or None): the same for resume"},
    {"set_other_compiler", set_other_compiler, METH_VARARGS,
     "set_other_compiler(get, set, left): how torch.compile's callback for new frames is read and set in this thread; "
     "left() is called when `call` has disabled it"},
    {"set_watch_callback", set_watch_callback, METH_O,
     "set_watch_callback(cb or None): called once, when a frame runs uncompiled because its lines are watched"},
    {"skip_prefixes", skip_prefixes, METH_O, "skip_prefixes(file name prefixes): code of these files runs uncompiled"},
    {"quiet_prefixes", quiet_prefixes, METH_O,
     "quiet_prefixes(file name prefixes): of the skipped files, those below whose frames everything runs uncompiled"},
    {"resume", METHOD(resume), METH_FASTCALL,
     "resume(point, globals, func, slots, stack[, [handled]]): go on after a graph break, to the end of the frame"},
    {"go_on", METHOD(go_on), METH_FASTCALL,
     "go_on(...): the value that a residual returns to have its frame resumed; the arguments of resume"},
    {"call_moving", METHOD(call_moving), METH_FASTCALL, "call_moving(callable, arguments, names): empties the list"},
    {"stand_for", stand_for, METH_O, "stand_for(exception): replace the frame that this one continues by this one in the traceback"},
    {"snapshot", snapshot, METH_VARARGS, "snapshot(frame, depth) -> (slots, stack) of a running frame, for tests"},
    {NULL, NULL, 0, NULL},
};
