"""A Python frame that is being interpreted, and the binding of arguments to its variables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn, TypeAlias

from smelt.base.class_tables import isinstance
from smelt.capture._native import NULL
from smelt.capture.core.breaks import At, user, user_raise
from smelt.capture.core.by_code import ByCode
from smelt.capture.core.bytecode import Decoded
from smelt.capture.core.interface import Args, Kwargs
from smelt.capture.core.sources import Source

Callers: TypeAlias = "tuple[Callers, At] | None"
RETURN = object()
YIELD = object()
"""The value that an opcode's handler returns if a generator's frame yields."""


OUTER = object()
"""Stack element below a handled exception if the frame itself handled no other: it represents the exception, if one
exists, that the frame's caller handles."""


class Unread:
    """A variable of the captured frame that the program has not read yet: it has no guards."""

    __slots__ = ("value", "source")

    def __init__(self, value: object, source: Source) -> None:
        self.value, self.source = value, source


class Frame:
    """Variables and stack of one activation of a code object.

    Attributes:
        locals: CPython's localsplus: variables, cells, free variables; NULL for those without a value.
        pc: index of the next instruction.
        handled: the exceptions being handled, innermost last.
        handled_at: for each handled exception, the stack index of the exception that was handled before it.
        kw_names: names of the keyword arguments of the next CALL (3.11, 3.12).
        callers: the locations of the frame's callers at the time of the call, innermost first.
        value: the value that the frame returned or yielded last.
        catching: cached answers whether the frame's clauses catch errors of an operation, see `fallible_ops`.
    """

    __slots__ = (
        "decoded", "code", "locals", "stack", "pc", "globals", "function", "handled", "handled_at",
        "kw_names", "value", "generator", "callers",
        "closure", "catching",
    )  # fmt: skip

    def __init__(
        self,
        code: CodeType,
        decoded: Decoded,
        locals: list[Any],
        globals: dict[str, Any],
        function: FunctionType | None,
    ) -> None:
        self.code, self.decoded = code, decoded
        self.locals = locals
        self.stack: list[Any] = []
        self.pc = 0
        self.globals = globals
        self.function = function
        self.closure: tuple[CellType, ...] = ()
        self.handled: list[BaseException] = []
        self.handled_at: list[int] = []
        self.kw_names: tuple[str, ...] = ()
        self.callers: Callers = None
        self.value: Any = None
        self.generator: Any = None
        self.catching: dict[tuple[Any, ...], bool] = {}

    def release(self) -> None:
        """Drop the references to the program's objects, at the end of the capture."""
        self.locals, self.stack, self.closure, self.handled = [], [], (), []
        self.function = self.value = self.generator = None

    @property
    def at(self) -> At:
        """The location of the present instruction in the user's code."""
        return At(self.code, self.decoded.offsets[max(self.pc - 1, 0)])


def slot_names(code: CodeType) -> list[str]:
    """The names of localsplus, in order."""
    seen = set(code.co_varnames)
    return [*code.co_varnames, *(name for name in code.co_cellvars if name not in seen), *code.co_freevars]


_slots: ByCode[int] = ByCode()


def slot_count(code: CodeType) -> int:
    """The length of localsplus."""
    known = _slots.get(code)
    return _slots.put(code, len(slot_names(code))) if known is None else known


def bind(
    function: FunctionType,
    defaults: tuple[object, ...] | None,
    kwdefaults: dict[str, object] | None,
    args: Args,
    kwargs: Kwargs,
) -> list[object]:
    """The localsplus of a call, as CPython fills it.

    Args:
        defaults, kwdefaults: the function's default values, already read through their sources.

    Raises:
        UserError: TypeError, when the arguments do not fit.
    """
    code = function.__code__
    count, flags = code.co_argcount, code.co_flags
    slots: list[object] = [NULL] * slot_count(code)
    if len(args) == count and not kwargs and not code.co_kwonlyargcount and not flags & _STAR:
        slots[:count] = args
        return slots
    if not all(isinstance(key, str) for key in kwargs):
        user_raise(TypeError("keywords must be strings"))
    refuse = functools.partial(_refuse, function, defaults, kwdefaults, args, kwargs)
    total = count + code.co_kwonlyargcount
    slots[: min(len(args), count)] = args[:count]
    if len(args) > count and not flags & inspect.CO_VARARGS:
        refuse()
    rest = _bind_keywords(function, slots, kwargs, total, refuse)
    _bind_defaults(function, slots, defaults or (), kwdefaults or {}, refuse)
    if flags & inspect.CO_VARARGS:
        slots[total] = tuple(args[count:])
        total += 1
    if flags & inspect.CO_VARKEYWORDS:
        slots[total] = rest
    elif rest:
        refuse()
    return slots


def _refuse(
    function: FunctionType,
    defaults: tuple[object, ...] | None,
    kwdefaults: dict[str, object] | None,
    args: Args,
    kwargs: Kwargs,
) -> NoReturn:
    """Raise Python's error for arguments that do not fit, by calling an empty function with the same parameters."""
    code, blank = function.__code__, _blank.__code__
    code = code.replace(
        co_code=blank.co_code,
        co_consts=blank.co_consts,
        co_names=(),
        co_freevars=(),
        co_cellvars=(),
        co_exceptiontable=b"",
        co_stacksize=blank.co_stacksize,
        co_flags=code.co_flags & _STAR | blank.co_flags & ~_STAR,
    )
    copied = FunctionType(code, {}, function.__name__, defaults)
    copied.__kwdefaults__ = kwdefaults
    copied.__qualname__ = function.__qualname__
    user(copied, *(None for _ in args), **dict.fromkeys(kwargs))
    raise AssertionError(f"the arguments of {function.__qualname__} fit")


def _blank() -> None:
    return None


_STAR = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def arguments_in(function: FunctionType, slots: Args) -> tuple[Args, Kwargs]:
    """Reconstruct the call's arguments (positional, keyword) from the slots of a frame; slots that got defaults are
    left out."""
    code = function.__code__
    count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    more = slots[total] if code.co_flags & inspect.CO_VARARGS else ()
    named = dict(zip(code.co_varnames[count:total], slots[count:total], strict=True))
    for name, default in (function.__kwdefaults__ or {}).items():
        if named.get(name) is default:
            del named[name]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        named |= slots[-1]
    first, defaults = count - len(function.__defaults__ or ()), function.__defaults__ or ()
    while not more and count > first and slots[count - 1] is defaults[count - 1 - first]:
        count -= 1
    return (*slots[:count], *more), named


def _bind_keywords(
    function: FunctionType, slots: list[object], kwargs: Kwargs, total: int, refuse: Callable[[], NoReturn]
) -> dict[str, object]:
    code, rest = function.__code__, {}
    names = code.co_varnames[code.co_posonlyargcount : total]
    for name, value in kwargs.items():
        if name not in names:
            rest[name] = value
            continue
        index = code.co_posonlyargcount + names.index(name)
        if slots[index] is not NULL:
            refuse()
        slots[index] = value
    return rest


def _bind_defaults(
    function: FunctionType,
    slots: list[object],
    defaults: tuple[object, ...],
    kwdefaults: dict[str, object],
    refuse: Callable[[], NoReturn],
) -> None:
    code = function.__code__
    count = code.co_argcount
    first = count - len(defaults)
    for index in range(count + code.co_kwonlyargcount):
        if slots[index] is not NULL:
            continue
        name = code.co_varnames[index]
        if first <= index < count:
            slots[index] = defaults[index - first]
        elif index >= count and name in kwdefaults:
            slots[index] = kwdefaults[name]
        else:
            refuse()
