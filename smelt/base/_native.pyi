"""The C side of `process_state` (native/preserve.c)."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

def preserving(fn: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    """`fn(*args, **kwargs)`; then what the preserver saved is restored, in spite of interrupts and of a full stack.

    An interrupt that meets the restoration is raised when it is done.
    """

def set_preserver(take: Callable[[], Callable[[BaseException | None], object]] | None, /) -> None:
    """`take()` is called before, and gives `restore(error)`, which is called until it returns, eight times at most."""
