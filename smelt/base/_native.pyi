"""C functions for `process_state` (preserve.c, handlers.c, thread_end.c), `torch_c` (switched.c), `class_tables`."""

from builtins import isinstance as isinstance
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")

def preserving(fn: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    """Run `fn(*args, **kwargs)`, then restore the state that the preserver saved, despite interrupts and a full stack.

    An interrupt during the restoration is raised after it.
    """

def switched(
    read: Callable[[], V], write: Callable[[V], object], during: V, fn: Callable[..., T], /, *args: object
) -> T:
    """Run `fn(*args)` with a thread's setting at `during`, and restore the setting, which the C functions `read` and
    `write` access.

    No interrupt is raised between the change and the call, or instead of the restoration.
    """

def inside() -> tuple[int, int]:
    """(number of nested calls of `preserving` in this thread, number of threads inside of such a call)."""

def forget_other_threads() -> None:
    """Forget the other threads inside of `preserving`, which do not exist in a forked process."""

def set_preserver(
    take: Callable[[], Callable[[BaseException | None], object]] | None, found: dict[str, Any], /
) -> None:
    """Set the function that `preserving` calls first: it returns `restore(error)`, which is called after the run until
    it returns, at most eight times.

    The dict `found` is emptied when the last thread leaves `preserving`.
    """

def watch_handlers(functions: tuple[FunctionType, ...], leave: Callable[[], Callable[[], object]], /) -> None:
    """Watch these functions, which handle signals: until the outermost `preserving` ends, an exception that one of them
    raises is raised at the end of each `preserving`.

    This affects the main thread, which runs signal handlers. An exception is recorded when it leaves its handler, even
    if other code catches it. `leave()` is called before a handler that interrupts no other handler; the function that
    it returns is called after the handler.
    """

def heard_from_handlers() -> BaseException | None:
    """The first exception that a watched handler has raised; None if none has."""

def end_threads_alone() -> bool:
    """Let threads that CPython ends at the end of the process not abort it; returns whether the C++ library is
    loaded.
    """

class ClassTable(Generic[V]):
    """An immutable table from classes, by identity, to values. A lookup calls no method of a class."""

    def __init__(self, pairs: Iterable[tuple[Any, V]], /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: object, /) -> V: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    @overload
    def get(self, key: object, /) -> V | None: ...
    @overload
    def get(self, key: object, default: T, /) -> V | T: ...
