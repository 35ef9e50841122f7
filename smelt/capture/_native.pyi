"""The C core of capture: the frame hook, entries per code object, resume points, guards, tensor metadata.

Built from smelt/capture/native/*.c, which does not import torch. `smelt.capture.guards.calibrate.calibrate()` sets the
memory layout of tensor metadata, and must have run before a `TensorSpec` or `state()` is made.
All functions take their arguments by position, except `call` and the constructors.

Terms
    slot          an element of CPython's `localsplus`: variables, then cells, then free variables.
    argument slots  the first slots of a frame: positional, keyword-only, *args, **kwargs (in this order).
    active        a thread is active inside `call` and `Compiled`, but not inside `Quiet`, callbacks and guards.
    flat          a function without defaults, *args, **kwargs, keyword-only arguments or free variables.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, final

@final
class _Null:
    """The type of `NULL`."""

NULL: Final[_Null]
"""Represents an unset slot or stack element, an empty cell, or a missing item. It is falsy and prints as `<NULL>`."""

# ---------------------------------------------------------------------------------------------- running

def call(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, owner: Any = None
) -> Any:
    """Run `fn(*args, **kwargs)` with the hook active for this thread. Calls may nest. Entries of other owners do not
    match.
    """

def owner() -> Any:
    """The owner of the innermost `call` of this thread; None outside of calls."""

def set_eager(on: bool) -> None:
    """Let `call` and `Compiled` leave the hook inactive in this thread while `on`; running calls become inactive at
    once.
    """

@final
class Compiled:
    """A callable that runs `fn` with the hook active. As a class attribute, it is bound like a function."""

    @property
    def fn(self) -> Callable[..., Any]: ...
    def __new__(cls, fn: Callable[..., Any]) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class Quiet:
    """A callable that runs `fn` with the hook inactive for this thread, at a cost of a few ns. It is bound like a
    function.
    """

    @property
    def fn(self) -> Callable[..., Any]: ...
    def __new__(cls, fn: Callable[..., Any]) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def uncaptured_call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The result of `Quiet(fn)(*args, **kwargs)`."""

def lend(
    callback: Callable[[FunctionType, tuple[Any, ...]], object] | None,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Any:
    """Run `fn(*args, **kwargs)`; meanwhile `callback` runs the Python functions that C code calls in this thread.

    `callback(function, slots)` returns the function's result or raises its exception; `slots` are the argument slots.
    If it returns NULL, the function runs uncaptured, in this call and later ones (this is recorded in its code object).
    Functions also run uncaptured while the callback runs, in `lend(None, ...)`, and under a debugger.
    """

def is_active() -> bool:
    """Whether the hook acts on frames that this thread starts at present."""

# ---------------------------------------------------------------------------------------------- entries

FrameCallback: TypeAlias = Callable[[CodeType, FunctionType, tuple[Any, ...], dict[str, Any], dict[str, Any]], object]
ResumeCallback: TypeAlias = Callable[
    [ResumePoint, FunctionType | None, tuple[Any, ...], dict[str, Any], dict[str, Any]], object
]

def set_callback(cb: FrameCallback | None) -> None:
    """Set the function that is called, with the hook inactive, before a function frame without a matching entry starts.

    It is called as `cb(code, func, slots, globals, builtins)`; `slots` are the argument slots. Then the entries are
    looked up once more; if none matches, the original runs (and the next such frame calls `cb` too, unless `skip(code)`
    was called). An exception of `cb` becomes the frame's. If `cb` returns a callable and the original returns, the
    callable is called without arguments; its exception becomes the frame's, too. If `cb` returns False, the frame and
    all frames below it run uncompiled. `cb` is not called for bodies of modules and classes, and not when generators
    resume.
    """

def set_resume_callback(cb: ResumeCallback | None) -> None:
    """Set the function that `resume` calls if no entry matches, like that of `set_callback`.

    It is called as `cb(point, func, slots, globals, builtins)`; `slots` are all slots, then the stack.
    """

def skip_prefixes(prefixes: Sequence[str]) -> None:
    """Skip code objects whose co_filename starts with one of these, without a callback (decided once per code
    object).
    """

def quiet_prefixes(prefixes: Sequence[str]) -> None:
    """Among the skipped files, let frames of files with these prefixes, and all frames below them, run uncompiled."""

@final
class ResumePoint:
    """A point inside `code` at which execution continues after a graph break. It is a compile site with its own
    entries.

    Args:
        code: code of an ordinary function (generators and coroutines: ValueError).
        offset: byte offset of the next instruction (of its first EXTENDED_ARG, if it has any).
        depth: number of stack elements at the point, including the NULLs that CPython keeps on the stack.
    """

    def __new__(cls, code: CodeType, offset: int, depth: int) -> Self: ...
    @property
    def code(self) -> CodeType: ...
    @property
    def offset(self) -> int: ...
    @property
    def depth(self) -> int: ...

SiteKey: TypeAlias = CodeType | ResumePoint
"""The key of a compile site."""

@final
class Entry:
    """One cache entry of a compile site, made by `add_entry`."""

    @property
    def guards(self) -> Guards: ...
    @property
    def replacement(self) -> CodeType: ...
    @property
    def constants(self) -> Any: ...
    @property
    def hits(self) -> int: ...
    @property
    def alive(self) -> bool:
        """Whether the entry is in use: False after a removal or `clear`, or when the code object is freed."""
    def remove(self) -> None:
        """Remove this entry. Does nothing if it has been removed already."""

def add_entry(site: SiteKey, guards: Guards, replacement: CodeType, constants: Any, owner: Any = None) -> Entry:
    """Append an entry, for calls of `owner` (None: for all). `replacement` is the code of a flat function
    `def resid(<slots>, _c, _f)`.

    <slots> are the argument slots (for a code object), or all slots and then the stack (for a ResumePoint; unset ones
    are passed as NULL, cells as cell objects). `_c` receives `constants`, `_f` the tuple that `guards` fetched. On a
    hit, the replacement runs in the frame that CPython made for the original, with the original function's globals.

    Raises:
        ValueError: the replacement is not flat or takes another number of arguments.
    """

def skip(site: SiteKey) -> None:
    """Ignore this site until `clear`: its frames run uncompiled, its resume points are injected."""

def quiet(code: CodeType) -> None:
    """Run frames of `code`, and all that they call, uncompiled; also after `clear`."""

def is_skipped(site: SiteKey) -> bool: ...
def clear(site: SiteKey) -> None:
    """Remove the entries and the mark of `skip`."""

def clear_all() -> None:
    """Call `clear` for all code objects and resume points (the marks of replacements stay)."""

def entries(site: SiteKey) -> list[Entry]:
    """The entries in the present order of the trials: an entry moves to the front when it is hit."""

def argument_slots(code: CodeType) -> int:
    """The number of argument slots of a frame of `code`."""

def resume(
    point: ResumePoint,
    globals: dict[str, Any],
    func: FunctionType | None,
    slots: list[Any],
    stack: list[Any],
    handled: list[BaseException] = ...,
    /,
) -> Any:
    """Continue `point.code` at `point.offset`; returns the result of the function.

    `slots` has `co_nlocalsplus` elements: values of plain variables, cell objects for cell and free variables, NULL for
    unset ones. `stack` has `point.depth` elements. If the thread is active, the entries are tried, then the resume
    callback, then the entries once more; otherwise, or without a match, the original code runs by frame injection.
    `handled` contains the exception that the code at the point is handling, if any. All three lists are emptied.

    Raises:
        ValueError: the lengths do not fit the code or the point.
    """

def go_on(
    point: ResumePoint,
    globals: dict[str, Any],
    func: FunctionType | None,
    slots: list[Any],
    stack: list[Any],
    handled: list[BaseException] = ...,
    /,
) -> Any:
    """A value that a replacement returns: the C code that runs the frame then resumes it.

    Therefore a loop with a graph break in each iteration needs no deeper stack than the program itself.
    """

def generator_at(
    code: CodeType,
    globals: dict[str, Any],
    slots: list[Any],
    stack: list[Any],
    offset: int,
    delegating: bool,
    /,
) -> Generator[Any, Any, Any]:
    """Make a suspended generator of `code`, whose next instruction is at `offset` (-1: it has not started).

    `slots` and `stack` are as for `resume`; `delegating`: whether it is in a `yield from`.

    Raises:
        ValueError: the lengths do not fit the code.
    """

def iterator_position(iterator: Iterator[Any], /) -> tuple[Any, int, int, int] | None:
    """The position of an iterator over a dict or set; None if it is exhausted.

    The position is (the dict or set, number of items passed, its size when the iterator was made (-1: the iterator has
    raised an error because the size changed), number of items left).

    Raises:
        TypeError: not an iterator over a set, or over the keys, values or items of a dict.
    """

def set_iterator_position(iterator: Iterator[Any], passed: int, used: int, left: int, /) -> None:
    """Move an iterator over a dict or set to the position that `iterator_position` returned for another iterator.

    Raises:
        TypeError: not an iterator over a set, or over the keys, values or items of a dict.
        ValueError: the iterator is exhausted.
    """

def set_other_compiler(get: Callable[[], Any], set: Callable[[Any], Any], left: Callable[[], None]) -> None:
    """Set the functions that read and set torch.compile's callback for new frames in this thread.

    `left` is called when `call` has disabled that callback.
    """

def set_watch_callback(cb: Callable[[], None] | None) -> None:
    """Set the function that is called once, when a frame runs uncompiled because a debugger or coverage tool follows
    the lines of this thread.
    """

def handle(error: BaseException | None, /) -> BaseException | None:
    """Set the exception that this thread is handling (`sys.exception()`); returns the previous one, which the calling
    function must restore.
    """

def call_handling(error: BaseException | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run `fn(*args, **kwargs)` as in an except clause for the exception."""

def reraise(error: BaseException, /) -> NoReturn:
    """Raise an exception once more with its context unchanged, unlike `raise`."""

def finalizers(value: Any, /) -> list[Any]:
    """The objects, among `value` and those that it refers to, that run code of the program when they are freed: a
    `__del__`, or the `finally` clause of a suspended generator.

    Visits at most 200 objects, also through frames in tracebacks.
    """

def call_moving(fn: Callable[..., Any], arguments: list[Any], names: tuple[str, ...], /) -> Any:
    """Call `fn` with the arguments in a list; the last ones are the keyword arguments `names`.

    The list is emptied, so that a Python function owns its arguments, as when bytecode calls it with elements of the
    stack.
    """

def stand_for(error: BaseException, /) -> None:
    """Replace, in the exception's traceback, the frame that caught it by the calling frame, which continues
    that frame.
    """

def snapshot(frame: FrameType, depth: int) -> tuple[list[Any], list[Any]]:
    """The raw slots and the lowest `depth` stack elements of a running frame, for tests and debugging. `depth` is not
    checked: too large a value crashes the process.
    """

# ---------------------------------------------------------------------------------------------- guards
# Fetch kinds: (parent, KIND, key). `parent` is the index of an earlier fetch, -1 for a root.
# A fetch that raises or does not apply (wrong type, no such key) fails the guards; the error is cleared.

LOCAL: Final[int]  # root, key: slot number (resume: slots, then stack). Unset: NULL
GLOBALS: Final[int]  # root, key: None. The globals dict
GLOBAL: Final[int]  # root, key: name. From globals, then builtins
BUILTINS: Final[int]  # root, key: None. The builtins dict
FUNC: Final[int]  # root, key: None. The function object of the frame
CLOSURE: Final[int]  # root, key: i. Content of func.__closure__[i]. Empty: NULL
CLOSURE_CELL: Final[int]  # root, key: i. The cell object func.__closure__[i] itself
CONST: Final[int]  # root, key: the object itself (kept alive)
WEAK: Final[int]  # root, key: a weakref. Its referent; dead: fails
ATTR: Final[int]  # key: name. getattr(parent, name): may run Python code
TYPE_ATTR: Final[int]  # key: name. Raw attribute from the MRO of type(parent), unbound. None there: NULL
CLASS_ATTR: Final[int]  # key: name. Raw attribute from the MRO of parent, which is a class. None there: NULL
INSTANCE_DICT: Final[int]  # key: None. The instance's own __dict__ (fails for objects without)
DICT_ITEM: Final[int]  # key: hashable. From the dict's own storage (dict subclasses: no __getitem__, no __missing__)
DICT_ITEM_OR_MISSING: Final[int]  # the same; absent: NULL
LIST_ITEM: Final[int]  # key: i, negative from the end. Lists and subclasses, own storage
TUPLE_ITEM: Final[int]  # the same for tuples
DICT_VALUE: Final[int]  # key: i. The value at a position of a dict (an OrderedDict: in its own order), own storage
TYPE: Final[int]  # key: None. type(parent)
CELL: Final[int]  # key: None. Content of a cell object. Empty: NULL
MODULE_MEMBER: Final[int]  # key: ("_parameters" | "_buffers" | "_modules", name). parent.__dict__[which][name]
SIZE: Final[int]  # key: dim. parent.shape[dim] as an int; parent passed a TENSOR check
CALL: Final[int]  # key: callable. callable(parent): may run Python code
FUNCTION_FIELD: Final[int]  # key: name ("__code__", "__defaults__", ...). A field of the function `parent`
SLOT: Final[int]  # key: `is_slot`. Its content; NULL (members of C: None) when it is empty; fails for other classes

# Check kinds: (fetch, KIND, operand). The checks of one fetch run in the given order directly after the fetch. `fetch`
# is -1 for STATE.

IS: Final[int]  # operand: object. Identity (kept alive; use WEAK_IS where that matters)
IS_NOT: Final[int]  # operand: object
TYPE_IS: Final[int]  # operand: class. type(value) is operand
EQ: Final[int]  # operand: constant. Same type and equal; 0.0 and -0.0 differ, NaN equals NaN; tuples element by element
LEN: Final[int]  # operand: int. Own storage of list, tuple, dict, set, str, bytes and subclasses; others fail
RANGE: Final[int]  # operand: (low, high). An int (not bool) with low <= value <= high
DICT_KEYS: Final[int]  # operand: tuple. Exactly these keys in this order
HAS_KEY: Final[int]  # operand: key
NOT_KEY: Final[int]  # operand: key. Is a dict without this key
MISSING: Final[int]  # operand: None. value is NULL
WEAK_IS: Final[int]  # operand: weakref. Identity; once the referent died the entry is removed
TENSOR: Final[int]  # operand: TensorSpec
ALIASED: Final[int]  # operand: index of an earlier fetch. Same object
NOT_ALIASED: Final[int]  # operand: index of an earlier fetch. Different objects
NONE_ALIASED: Final[int]  # operand: tuple of indices up to this fetch. All different objects
STATE: Final[int]  # operand: what state() returned. fetch is -1
MODULE: Final[int]  # operand: (training | None, names). parent.__dict__["training"] is so, parent.__dict__[names] empty
NO_FINALIZER: Final[int]  # operand: None. No code of the program would run if the object died now
FUNCTION: Final[int]  # operand: (__code__, __defaults__, __kwdefaults__). A function with these very objects
PYTHON: Final[int]  # operand: callable(value) -> truthy, or (callable, (i, j, ...)): callable(*values of these fetches)
# ... or (callable, (i, j, ...), a shortcut below or a program over sizes): called where the shortcut does not confirm
SHORT_DISJOINT: Final[int]  # the tensors share no memory
SHORT_EQUAL_NUMBERS: Final[int]  # the tensors hold one floating-point number each, all the same
SHORT_NO_HOOKS: Final[int]  # the tensors have no hooks for their gradients

SIZE_OPS: Final[tuple[str, ...]]
"""Names of the operations of programs over sizes, by number. A program is (op, argument, op, argument ...)."""
FETCH_NAMES: Final[tuple[str, ...]]
"""Name of each fetch kind, by number."""
CHECK_NAMES: Final[tuple[str, ...]]
"""Name of each check kind, by number."""

Fetch: TypeAlias = tuple[int, int, Any]
Check: TypeAlias = tuple[int, int, Any]
Failure: TypeAlias = tuple[Literal["fetch", "check"], int, Any]

def set_equality(function: Callable[[Any, Any], bool]) -> None:
    """Set the function by which EQ compares two ranges, two numbers of numpy and the like of one class, since values
    that are equal by == may differ.
    """

def is_slot(object: Any, /) -> bool:
    """Whether the object is the descriptor of a member that is a reference to an object, not a C number."""

def instance_dict(object: object, /) -> dict[str, object] | None:
    """The dictionary of an object's attributes, also if `__dict__` does not show it; None if it has none."""

def name_in_c(type: type, /) -> str:
    """The name of a type in errors of C code, which contains the module for types that are defined in C."""

def takes_all(object: Any, /) -> bool:
    """Whether the object is a descriptor as in `is_slot` whose member can be set to every object."""

@final
class Guards:
    """A tree of fetches with their checks; evaluated without Python frames, except for ATTR, CALL and PYTHON.

    Args:
        fetches: (parent, KIND, key), parents before children.
        checks: (fetch, KIND, operand).
        outputs: indices of fetches whose values become the tuple `_f`.

    Raises:
        ValueError, TypeError: an unknown kind, an index out of order, a key or operand of the wrong type.
    """

    def __new__(cls, fetches: Sequence[Fetch], checks: Sequence[Check], outputs: Sequence[int]) -> Self: ...
    @property
    def fetches(self) -> tuple[Fetch, ...]: ...
    @property
    def checks(self) -> tuple[Check, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def renewed(self) -> int:
        """The number of times that a dict or class was reread; it is constant as long as none of them is written."""
    def check(
        self, slots: Sequence[Any], globals: dict[str, Any], func: FunctionType | None = None
    ) -> tuple[Any, ...] | None:
        """The fetched outputs, or None if a guard fails. `slots` is a tuple or list."""
    def failure(
        self, slots: Sequence[Any], globals: dict[str, Any], func: FunctionType | None = None
    ) -> Failure | None:
        """The first guard that fails, as ("fetch", index, value of its parent) or ("check", index, found value); None
        if all hold.

        The found value of a STATE check is the present `state()`.
        """
    def time(self, slots: Sequence[Any], globals: dict[str, Any], func: FunctionType | None, n: int) -> float:
        """Seconds per evaluation over `n` evaluations (0 counts as one). For benchmarks."""

# ---------------------------------------------------------------------------------------------- tensors

@final
class Variants:
    """Dispatches a call to the version of a function that was made for the kinds of its inputs and the present mode.

    Args:
        make: (inputs, whether the version is kept) -> a version.
        kind_of: the kind of an input: a TensorSpec, a number or None, or any value that identifies the kind.
        mode: () -> one of few permanent objects.
        most: maximum number of versions that are kept; beyond it, each call makes a version.
    """

    def __new__(
        cls,
        make: Callable[[tuple[Any, ...], bool], Callable[..., Any]],
        kind_of: Callable[[Any], Any],
        mode: Callable[[], Any],
        most: int,
    ) -> Self: ...
    def __call__(self, *inputs: Any) -> Any: ...
    def __len__(self) -> int:
        """The number of versions that are kept."""

@final
class TensorSpec:
    """The properties that a TENSOR check compares: exact class, dispatch keys (device type, layout, conj, neg,
    functorch, Python ...), dtype, device with index, requires_grad, shape, strides.

    Args:
        tensor: the example. Subclasses with Python sizes, sparse and nested tensors take a slower path.
        shape: expected sizes, one for each dimension; None matches all sizes. Default: the example's.
        stride: expected strides, one for each dimension; None matches all strides. Default: the example's.
        order: dimensions that must be dense in memory for the actual shape, innermost first.
        requires_grad: the expected flag; None matches both. Default: the example's.
    """

    def __new__(
        cls,
        tensor: Any,
        *,
        shape: Sequence[int | None] | None = None,
        stride: Sequence[int | None] | None = None,
        order: Sequence[int] = (),
        requires_grad: bool | None | Literal["example"] = "example",
    ) -> Self: ...
    @property
    def type(self) -> type[Any]:
        """The exact class."""
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    @property
    def requires_grad(self) -> bool | None: ...
    @property
    def shape(self) -> tuple[int | None, ...]: ...
    @property
    def stride(self) -> tuple[int | None, ...]: ...
    @property
    def order(self) -> tuple[int, ...] | None: ...
    @property
    def keys(self) -> int:
        """The dispatch keys as an integer."""
    @property
    def raw(self) -> bool:
        """Whether checks read memory directly (False: through the tensor's Python attributes)."""
    def matches(self, value: Any) -> bool: ...
    def mismatch(self, value: Any) -> str | None:
        """The first difference as text (`shape[0]: expected 8, got 4`); None if the value matches."""

def state() -> tuple[Any, ...]:
    """The present values of the ambient modes, in the order of `state_names()`."""

def state_names() -> tuple[str, ...]: ...

# ---------------------------------------------------------------------------------------------- set-up (calibrate.py)

def set_tensor_layout(
    tensor: type, describe: Callable[[Any], tuple[Any, ...]], numbers: Mapping[str, int] | None, /
) -> None:
    """Set how the metadata of tensors is read.

    Args:
        tensor: torch.Tensor.
        describe: returns (dtype, device, requires_grad, dispatch keys, plain, shape, stride or None) of a tensor.
        numbers: "impl" is a byte offset in the Python object; "keys", "dims" and "kind" are byte offsets in the
            TensorImpl; "kind_mask" has the bits at "kind" for dtype and device; "requires_grad" is the address of a C
            function. None: all metadata is read by `describe`.
    """

def set_state_readers(readers: tuple[tuple[str, Callable[[], Any], int, int, int], ...], libc10: str | None, /) -> bool:
    """Set the readers of ambient modes: (name, function without arguments, address, argument, result bytes).

    If the address is not 0, the C function at this address is called with the argument instead of the Python function.
    The thread-local dispatch key set of `libc10` (a path) is compared as well if its symbol is found; returns whether
    it is.
    """
