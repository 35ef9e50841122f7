"""The C side of `process_state` (preserve.c, handlers.c, thread_end.c), `torch_c` (switched.c) and `class_tables`."""

from builtins import isinstance as isinstance
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")

def preserving(fn: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    """`fn(*args, **kwargs)`; then what the preserver saved is restored, in spite of interrupts and of a full stack.

    An interrupt that meets the restoration is raised when it is done.
    """

def switched(
    read: Callable[[], V], write: Callable[[V], object], during: V, fn: Callable[..., T], /, *args: object
) -> T:
    """`fn(*args)` between `write(during)` and `write(what read() gave before)`, C functions for the state of a thread.

    No interrupt comes between, and none in place of the second.
    """

def inside() -> tuple[int, int]:
    """How many calls of `preserving` this thread is inside of, and how many threads are inside of one."""

def forget_other_threads() -> None:
    """They are gone: the process has been forked."""

def set_preserver(
    take: Callable[[], Callable[[BaseException | None], object]] | None, found: dict[str, Any], /
) -> None:
    """`take()` is called before, and gives `restore(error)`, which is called until it returns, eight times at most.

    The dict `found` is emptied when no thread is inside of `preserving` any more.
    """

def watch_handlers(functions: tuple[FunctionType, ...], leave: Callable[[], Callable[[], object]], /) -> None:
    """These handle signals: until the outermost `preserving` ends, what they raise is raised at the end of each.

    In the main thread, which runs handlers. What they raise is noted as it leaves them, whatever becomes of it.
    `leave()` is called before one that interrupts no other, and what it gives is called after it.
    """

def heard_from_handlers() -> BaseException | None:
    """What a handler has raised since it is watched."""

def end_threads_alone() -> bool:
    """From here on a thread that CPython ends at the end of the process does not abort it; whether C++ is there."""

class ClassTable(Generic[V]):
    """An immutable table from classes, by their identity, to values. Nothing of a class is asked to find it."""

    def __init__(self, pairs: Iterable[tuple[Any, V]], /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: object, /) -> V: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    @overload
    def get(self, key: object, /) -> V | None: ...
    @overload
    def get(self, key: object, default: T, /) -> V | T: ...
