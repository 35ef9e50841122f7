"""The C core of capture: frame hook, entries per code object, resume points, guards, tensor metadata.

Built from smelt/capture/native/*.c. Nothing here imports torch; `smelt.capture.guards.calibrate.calibrate()` tells the
extension the memory layout of tensor metadata, and must have run before a `TensorSpec` or `state()` is made.
All functions take their arguments by position, except `call` and the constructors.

Words used below
    slot          an element of CPython's `localsplus`: variables, then cells, then free variables.
    argument slots  the first slots of a frame: positional, keyword-only, *args, **kwargs (in this order).
    active        a thread is active inside `call` and `Compiled`, and not inside `Quiet`, callbacks and guards.
    flat          a function without defaults, *args, **kwargs, keyword-only arguments or free variables.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, final

@final
class _Null:
    """The type of `NULL`."""

NULL: Final[_Null]
"""Stands for an unset slot or stack element, an empty cell and a missing item. Falsy; prints as `<NULL>`."""

# ---------------------------------------------------------------------------------------------- running

def call(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, owner: Any = None
) -> Any:
    """Run `fn(*args, **kwargs)` with the hook active for this thread. May nest. Entries of other owners never hit."""

def owner() -> Any:
    """The owner of the innermost `call` of this thread, None without one."""

def set_eager(on: bool) -> None:
    """While on, `call` and `Compiled` leave the hook inactive in this thread; running calls become inactive at once."""

@final
class Compiled:
    """A callable that runs `fn` with the hook active. Binds like a function when stored in a class."""

    @property
    def fn(self) -> Callable[..., Any]: ...
    def __new__(cls, fn: Callable[..., Any]) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class Quiet:
    """A callable that runs `fn` with the hook inactive for this thread (a few ns). Binds like a function."""

    @property
    def fn(self) -> Callable[..., Any]: ...
    def __new__(cls, fn: Callable[..., Any]) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def quiet_call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Quiet(fn)(*args, **kwargs)`."""

def lend(
    callback: Callable[[FunctionType, tuple[Any, ...]], object] | None,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Any:
    """`fn(*args, **kwargs)`, where `callback(function, slots)` gives the result of each Python function that C code
    calls meanwhile in this thread, or raises its exception. NULL: the function runs uncaptured, now and in later calls
    (recorded in its code object). `slots` are the argument slots. While the callback runs, in `lend(None, ...)`, and
    under a debugger, functions run uncaptured.
    """

def is_active() -> bool:
    """Whether the hook acts on frames that this thread starts now."""

# ---------------------------------------------------------------------------------------------- entries

FrameCallback: TypeAlias = Callable[[CodeType, FunctionType, tuple[Any, ...], dict[str, Any], dict[str, Any]], object]
ResumeCallback: TypeAlias = Callable[
    [ResumePoint, FunctionType | None, tuple[Any, ...], dict[str, Any], dict[str, Any]], object
]

def set_callback(cb: FrameCallback | None) -> None:
    """`cb(code, func, slots, globals, builtins)` runs, with the hook inactive, before a function frame that starts
    without a matching entry. `slots` are the argument slots. Afterwards entries are looked up again; if there is still
    none, the original runs (and the next such frame calls the callback again, unless `skip(code)`). An exception of cb
    becomes the frame's. If cb returns a callable and the original runs and returns, the callable is called without
    arguments; an exception of it becomes the frame's. False: the frame and all below it run uncompiled. Not called for
    module and class bodies, nor for the resumption of generators.
    """

def set_resume_callback(cb: ResumeCallback | None) -> None:
    """`cb(point, func, slots, globals, builtins)`: the same for `resume`; `slots` are all slots, then the stack."""

def skip_prefixes(prefixes: Sequence[str]) -> None:
    """Codes whose co_filename starts with one of these are skipped without a callback (decided once per code)."""

def quiet_prefixes(prefixes: Sequence[str]) -> None:
    """Of the skipped files, those below whose frames everything runs uncompiled."""

@final
class ResumePoint:
    """A point inside `code` where execution continues after a graph break; the owner of its own entries.

    Args:
        code: code of an ordinary function (generators and coroutines: ValueError).
        offset: byte offset of the next instruction (of its first EXTENDED_ARG, if it has any).
        depth: number of stack elements there (NULLs that CPython keeps on the stack count).
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
    """One cache entry of a compile site. Made by `add_entry`."""

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
        """False once removed or cleared, or when the code object died."""
    def remove(self) -> None:
        """Drop this entry only. Does nothing when it has been removed already."""

def add_entry(site: SiteKey, guards: Guards, replacement: CodeType, constants: Any, owner: Any = None) -> Entry:
    """Append an entry, for calls of `owner` (None: for all). `replacement` is the code of a flat function
    `def resid(<slots>, _c, _f)`.

    <slots> are the argument slots (for a code) or all slots and then the stack (for a ResumePoint; unset ones arrive
    as NULL, cells as cell objects). `_c` receives `constants`, `_f` the tuple that `guards` fetched. On a hit
    the replacement runs in the frame that CPython made for the original, with the original function's globals.

    Raises:
        ValueError: the replacement is not flat or takes another number of arguments.
    """

def skip(site: SiteKey) -> None:
    """Ignore this site until `clear`: its frames run uncompiled, its resume points are injected."""

def quiet(code: CodeType) -> None:
    """Run frames of `code`, and all that they call, uncompiled; also after `clear`."""

def is_skipped(site: SiteKey) -> bool: ...
def clear(site: SiteKey) -> None:
    """Forget entries and skip mark."""

def clear_all() -> None:
    """`clear` for every code and resume point (the skip marks of replacements stay)."""

def entries(site: SiteKey) -> list[Entry]:
    """The entries in the order in which they are tried now (the last one hit moves to the front)."""

def argument_slots(code: CodeType) -> int:
    """How many argument slots a frame of `code` has."""

def resume(
    point: ResumePoint,
    globals: dict[str, Any],
    func: FunctionType | None,
    slots: list[Any],
    stack: list[Any],
    handled: list[BaseException] = ...,
    /,
) -> Any:
    """Continue `point.code` at `point.offset` and return what the function returns.

    `slots` has `co_nlocalsplus` elements: values of plain variables, cell objects for cell and free variables, NULL
    for what is unset. `stack` has `point.depth` elements. Entries are tried (as long as the thread is active), then
    the resume callback, then the entries once more; then the original code runs by frame injection. `handled` contains
    the exception that the code at the point is handling, if any. All three lists are emptied.

    Raises:
        ValueError: lengths that do not fit the code or the point.
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
    """The value that a replacement returns to have its frame resumed, by the code that runs the frame.

    So a loop with a break in each iteration needs no deeper stack than the program itself.
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
    """A suspended generator of `code`, whose next instruction is at `offset` (-1: it has not started).

    `slots` and `stack` are as for `resume`; `delegating`: it is in a `yield from`.

    Raises:
        ValueError: lengths that do not fit the code.
    """

def iterator_position(iterator: Iterator[Any], /) -> tuple[Any, int, int, int] | None:
    """The position of an iterator over a dict or set; None when it is exhausted.

    (the dict or set, number of items passed, its size when the iterator was made (-1: the iterator has raised because
    the size changed), number of items left)

    Raises:
        TypeError: not an iterator over a set, or over the keys, values or items of a dict.
    """

def set_iterator_position(iterator: Iterator[Any], passed: int, used: int, left: int, /) -> None:
    """Move an iterator over a dict or set to the position that `iterator_position` gave for another.

    Raises:
        TypeError: not an iterator over a set, or over the keys, values or items of a dict.
        ValueError: it is exhausted.
    """

def set_other_compiler(get: Callable[[], Any], set: Callable[[Any], Any], left: Callable[[], None]) -> None:
    """Functions that read and set torch.compile's callback for new frames in this thread; `left` is called when `call`
    has disabled it."""

def set_watch_callback(cb: Callable[[], None] | None) -> None:
    """`cb()` runs once: when a frame runs uncompiled as a debugger or coverage tool follows this thread's lines."""

def handle(error: BaseException | None, /) -> BaseException | None:
    """Set the exception that this thread is handling (`sys.exception()`); returns the previous one, which
    the same function must restore."""

def call_handling(error: BaseException | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)` as it would run in an except clause for that exception."""

def reraise(error: BaseException, /) -> NoReturn:
    """Raise an exception once more with its context unchanged, unlike `raise`."""

def finalizers(value: Any, /) -> list[Any]:
    """The object, and those that it refers to, whose death runs code of the program: a `__del__`, or the `finally` of a
    suspended generator. Visits at most 200 objects, also through frames in tracebacks."""

def call_moving(fn: Callable[..., Any], arguments: list[Any], names: tuple[str, ...], /) -> Any:
    """Call `fn` with the arguments in a list, the last of which are keywords `names`. The list is emptied, so that a
    Python function owns its arguments, as when bytecode calls it with elements of the stack."""

def stand_for(error: BaseException, /) -> None:
    """Replace, in the exception's traceback, the frame that caught it by the calling frame, which continues it."""

def snapshot(frame: FrameType, depth: int) -> tuple[list[Any], list[Any]]:
    """Raw slots and the lowest `depth` stack elements of a running frame. For tests and debugging: `depth` is not
    checked, too large a value crashes."""

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

# Check kinds: (fetch, KIND, operand). Those of one fetch run in their given order right after it, before any later
# fetch. `fetch` is -1 for STATE.

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
"""Names of the steps of programs over sizes, by number: (op, argument, op, argument ...)."""
FETCH_NAMES: Final[tuple[str, ...]]
"""Name of each fetch kind, by number."""
CHECK_NAMES: Final[tuple[str, ...]]
"""Name of each check kind, by number."""

Fetch: TypeAlias = tuple[int, int, Any]
Check: TypeAlias = tuple[int, int, Any]
Failure: TypeAlias = tuple[Literal["fetch", "check"], int, Any]

def set_equality(function: Callable[[Any, Any], bool]) -> None:
    """EQ compares two ranges, numbers of numpy and the like of one class with it: values equal by == may differ."""

def is_slot(object: Any, /) -> bool:
    """Whether it is the descriptor of a member of type object, not of a C number."""

def instance_dict(object: object, /) -> dict[str, object] | None:
    """Its attributes, also where `__dict__` does not show them; None: it has none."""

def name_in_c(type: type, /) -> str:
    """Its name in errors of C code; for types made in C with the module."""

def takes_all(object: Any, /) -> bool:
    """Whether it is such a descriptor whose member can be set to any object."""

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
        """How often a dict or class was reread: constant as long as nothing is written."""
    def check(
        self, slots: Sequence[Any], globals: dict[str, Any], func: FunctionType | None = None
    ) -> tuple[Any, ...] | None:
        """The fetched outputs, or None when a guard fails. `slots` is a tuple or list."""
    def failure(
        self, slots: Sequence[Any], globals: dict[str, Any], func: FunctionType | None = None
    ) -> Failure | None:
        """The first guard that fails: ("fetch", index, value of its parent) or ("check", index, value found: the
        current `state()` for STATE); None when all hold."""
    def time(self, slots: Sequence[Any], globals: dict[str, Any], func: FunctionType | None, n: int) -> float:
        """Seconds per evaluation over `n` evaluations (0 counts as one). For benchmarks."""

# ---------------------------------------------------------------------------------------------- tensors

@final
class Variants:
    """Dispatches a call to the version of a function made for inputs of these kinds, in the present mode.

    Args:
        make: (inputs, whether the version is kept) -> a version.
        kind_of: the kind of an input: a TensorSpec, a number or None, or any value that identifies the kind.
        mode: () -> one of few permanent objects.
        most: maximum number of versions kept; after these each call makes one.
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
        """The number of versions kept."""

@final
class TensorSpec:
    """What a TENSOR check compares: exact class, dispatch keys (device type, layout, conj, neg, functorch, Python ...),
    dtype, device with index, requires_grad, shape, strides.

    Args:
        tensor: the example. Subclasses with Python sizes, sparse and nested tensors take a slower path.
        shape: as long as tensor.shape; None where any size matches. Default: the example's.
        stride: as long as tensor.stride(), None where any matches. Default: the example's.
        order: dimensions that are dense in memory for the actual shape, innermost first.
        requires_grad: None if any matches. Default: the example's.
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
        """The word of dispatch keys."""
    @property
    def raw(self) -> bool:
        """Whether checks read memory directly (False: through the tensor's Python attributes)."""
    def matches(self, value: Any) -> bool: ...
    def mismatch(self, value: Any) -> str | None:
        """The first difference as text (`shape[0]: expected 8, got 4`), None when it matches."""

def state() -> tuple[Any, ...]:
    """The present values of the ambient modes, in the order of `state_names()`."""

def state_names() -> tuple[str, ...]: ...

# ---------------------------------------------------------------------------------------------- set-up (calibrate.py)

def set_tensor_layout(
    tensor: type, describe: Callable[[Any], tuple[Any, ...]], numbers: Mapping[str, int] | None, /
) -> None:
    """`tensor` is torch.Tensor; `describe(tensor)` gives (dtype, device, requires_grad, dispatch key word, plain,
    shape, stride or None). `numbers`: byte offset "impl" in the Python object; offsets "keys", "dims", "kind" in the
    TensorImpl; "kind_mask", the bits at "kind" that are dtype and device; "requires_grad", address of a C function.
    None: everything through `describe`.
    """

def set_state_readers(readers: tuple[tuple[str, Callable[[], Any], int, int, int], ...], libc10: str | None, /) -> bool:
    """Readers are (name, function without arguments, address, argument, result bytes); with an address the C function
    there is called with the argument instead. The thread-local dispatch key set of `libc10` (a path) is added when its
    symbol is found: the result says whether."""
