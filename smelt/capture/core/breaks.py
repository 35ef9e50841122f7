"""The exceptions that stop a capture: a graph break, a restart, or an exception of the user's own code.

These three do not derive from Exception, so that `except Exception` clauses and C code never swallow them.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from smelt.base.class_tables import isinstance
from smelt.base.errors import Unsupported
from smelt.base.text import on_one_line
from smelt.capture.core.interface import Args
from smelt.graph.ir.symint import has_symint, pinned

if TYPE_CHECKING:
    from smelt.capture.core.plan import CapturePlan

E = TypeVar("E", bound=BaseException)


class Break(BaseException):
    """A graph break: capture met an operation that it cannot put in a graph.

    Args:
        title: name of the operation, in the user's terms.
        why: reason why the operation ends the graph.
        hint: suggested change to the program.
        silent: the break follows from an earlier one (in a loop that continues) and is not reported separately.
        in_frame: the operation inspects the frame that runs it (`eval`, tracebacks), so the original frame continues.
        of_callers: the operation also inspects the frames of its callers, so their original frames continue, too.

    Attributes:
        because: guards (source, kind, operand) that check that the reason for the break still applies.
        of_hook: the break occurred in a hook of a module, before or after that module's `forward`.
    """

    def __init__(
        self,
        title: str,
        why: str = "",
        hint: str = "",
        silent: bool = False,
        in_frame: bool = False,
        of_callers: bool = False,
    ) -> None:
        super().__init__(title)
        self.of_callers = of_callers
        self.title, self.why, self.hint, self.silent, self.in_frame = title, why, hint, silent, in_frame
        self.at: At | None = None
        self.because: list[tuple[Any, int, Any]] = []
        self.of_hook = False


class Restart(BaseException):
    """Request to start the capture over and to stop it before instruction `step` of the captured frame (counted from
    its start), because the break was found only after that instruction.

    Args:
        stop: the break at that instruction; None if the capture only starts over.
        plan: the plan of the next attempt; None if the code that raises this does not determine it.
    """

    def __init__(self, step: int, stop: Break | None, plan: CapturePlan | None = None) -> None:
        super().__init__(step)
        self.step, self.stop, self.plan = step, stop, plan


class UserError(BaseException):
    """An exception that the user's program raised while it was interpreted."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class SymbolicNumber(Exception):
    """A symbolic number reached code that accepts only plain numbers: the capture has to start over without symbols."""


class CannotRebuild(Exception):
    """A value that leaves the frame cannot be reconstructed by residual code."""


@dataclass(frozen=True, slots=True)
class At:
    """A location in the user's code; its line is computed only when it is read."""

    code: CodeType
    offset: int

    @property
    def line(self) -> int:
        found = self.code.co_firstlineno
        for start, end, line in self.code.co_lines():
            if start <= self.offset < end and line is not None:
                found = line
        return found

    def __str__(self) -> str:
        return on_one_line(f"{self.code.co_filename}:{self.line}")


ROOT = "<smelt root>"
"""The file name of the code that calls a compiled callable without a frame of its own; it is no line of the user's."""


@dataclass(frozen=True)
class BreakReason:
    """One graph break as `explain` and `fullgraph` show it."""

    title: str
    at: str
    why: str
    hint: str

    @classmethod
    def of(cls, stop: Break) -> BreakReason:
        why, hint = on_one_line(stop.why), on_one_line(stop.hint)
        return cls(on_one_line(stop.title), str(stop.at) if stop.at else "", why, hint)

    def error(self) -> Unsupported:
        """The reason as the error that `fullgraph=True` raises."""
        return Unsupported(self.title, at=self.at or None, why=self.why or None, hint=self.hint or None)

    def __str__(self) -> str:
        return str(self.error())


def bare(error: E) -> E:
    """The same exception with its traceback removed, because the traceback's frames refer to objects of the program."""
    let_go(error)
    error.__context__ = error.__cause__ = None
    return error


def let_go(error: BaseException) -> None:
    """Clear the frames of an exception's traceback that ran during capture, and remove the traceback.

    A variable of such a frame may refer to the exception itself: this reference cycle would keep alive every object
    that the frames refer to.
    """
    entry, error.__traceback__ = error.__traceback__, None
    while entry is not None:
        try:
            entry.tb_frame.clear()
        except RuntimeError:  # still running: cannot be cleared
            pass
        entry = entry.tb_next


def user(fn: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
    """Run one operation of the user's program natively; an exception that it raises becomes a `UserError`."""
    try:
        out = fn(*args, **kwargs)
        if out is NotImplemented and has_symint(args):  # `(3).__add__(n)`
            return fn(*pinned(args), **kwargs)
        return out
    except Unsupported as error:
        raise Break(error.what, error.why or "", error.hint or "") from None
    except RecursionError:
        raise too_deep() from None
    except SymbolicNumber:
        raise
    except Exception as error:
        if wants_memory(error):
            raise Break("the memory of a tensor is read", "its values are not known yet") from None
        if symbolic(args, error):
            return user(fn, *plain_numbers(fn, args), **kwargs)
        raise UserError(error) from None
    except (Break, Restart, UserError):
        raise
    except BaseException as error:
        if is_programs(error):
            raise UserError(error) from None
        raise


def wants_memory(error: Exception) -> bool:
    """Whether C code failed because it asked for the memory of a trace tensor. This is no user error, since tensors
    have memory in eager."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


_NO_MEMORY = (
    "its data is not allocated yet",
    "Cannot access data pointer of Tensor",
    "Attempted to access the data pointer on an invalid python storage",
)
"""Messages of torch's C code about a tensor without memory."""


def symbolic(args: Args, error: Exception) -> bool:
    """Whether a call may have failed only because its arguments are symbolic numbers, which some C code rejects.

    Raises:
        SymbolicNumber: the error names a SymInt, but none was found in the arguments (it may be in a dict or set).
    """
    if has_symint(args):
        return True
    if isinstance(error, TypeError) and "SymInt" in str(error):
        raise SymbolicNumber("a symbolic number met C code that cannot take it")
    return False


def plain_numbers(fn: Callable[..., object], args: Args) -> tuple[object, ...]:
    """The arguments with symbolic numbers replaced by their example values, to retry a call that refused symbols.

    Raises:
        DataDependent: the number is data-dependent and has no example value.
        SymbolicNumber: the call may have changed one of its arguments before it failed.
    """
    at = next((at for at, arg in enumerate(args[:-1], 1) if isinstance(arg, _HASHING)), 0)
    called = args[at - 2] if at > 1 else fn
    # the key is hashed before the container changes
    if at and getattr(called, "__name__", "") in _OF_A_KEY and has_symint(args[at]):
        return (*args[:at], pinned(args[at]), *args[at + 1 :])
    plain = pinned(args)
    if any(isinstance(arg, _CHANGING) for arg in args):
        raise SymbolicNumber("a symbolic number met C code that cannot take it")
    return plain


_CHANGING = (list, dict, set, collections.deque)
_HASHING = (dict, set, frozenset)
_OF_A_KEY = frozenset(
    "contains getitem setitem delitem __contains__ __getitem__ __setitem__ __delitem__ "
    "get pop setdefault move_to_end add discard remove update".split()
)
"""Operators and methods that hash a key. A failed `update` may be retried even if it has added some items."""


def too_deep() -> Break:
    """The break where capture overflows the stack. Capture needs about ten frames for one frame of the program, so the
    overflow is no error of the program."""
    return Break("recursion that is too deep to inline", "capture came near to Python's recursion limit")


def is_deep() -> bool:
    """Whether more than half of the stack is used: code that overflows it here may succeed if called from a shallower
    frame."""
    frame: Any = sys._getframe(1)
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth > sys.getrecursionlimit() // 2


def through_c(run: Callable[[], object]) -> object:
    """Run interpreted code that C code called back; exceptions of the program pass through the C code unchanged.

    The exception is raised outside of the `except` clause, so that its context is not an exception of capture.
    """
    try:
        return run()
    except UserError as error:
        raised = error.error
    try:
        pass_on(raised)
    finally:
        del raised, run  # the exception refers to this frame


def pass_on(error: BaseException) -> NoReturn:
    """Raise the program's exception natively, so that C code passes it on."""
    try:
        raise error
    finally:
        del error


def is_programs(error: BaseException) -> bool:
    """Whether the program raised the exception (through `pass_on`); otherwise it is an interrupt, which may occur at
    any time."""
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code is pass_on.__code__:
            return True
        entry = entry.tb_next
    return False


def user_raise(error: BaseException) -> NoReturn:
    """Raise `error` as the interpreted program would."""
    raise UserError(error)


def with_causes(errors: Iterable[BaseException | None]) -> set[int]:
    """The identities of the exceptions and of all their causes and contexts."""
    found: set[int] = set()
    left = list(errors)
    while left:
        error = left.pop()
        if error is not None and id(error) not in found:
            found.add(id(error))
            left += [error.__context__, error.__cause__]
    return found
