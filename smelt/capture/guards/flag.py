"""The guard that a setting of the process or the thread is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


class Flag:
    """A check that a function returns the same value as during capture."""

    def __init__(self, fn: Callable[..., object], args: tuple[object, ...], value: object) -> None:
        self.fn, self.args, self.value = fn, args, value
        given = ", ".join(a.__name__ if isinstance(a, ModuleType) else repr(a) for a in args)
        self.subject = f"{fn.__qualname__}({given})"
        self.__name__ = f"{self.subject} == {value!r}"

    def now(self) -> object:
        """The function's present result."""
        return self.fn(*self.args)

    def __call__(self) -> bool:
        now = self.now()
        return type(now) is type(self.value) and bool(now == self.value)
