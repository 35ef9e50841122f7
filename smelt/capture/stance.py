"""The stance of a thread: whether its calls of compiled callables may compile, must not, or run in eager."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from smelt.base.errors import unknown_name
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special

P = ParamSpec("P")
R = TypeVar("R")

STANCES = ("default", "force_eager", "fail_on_recompile", "eager_on_recompile")


class _Present(threading.local):
    name = "default"


_present = _Present()


def current() -> str:
    """The stance of this thread."""
    return _present.name


def _take(name: str) -> None:
    _present.name = name
    native.set_eager(name == "force_eager")


class stance:
    """Set the stance of calls of compiled functions in this thread: permanently, in a `with` block or in a function.

        smelt.stance("fail_on_recompile")          # until another stance is set
        with smelt.stance("force_eager"): ...      # in the block

        @smelt.stance("force_eager")               # while this function runs
        def evaluate(model): ...

    Args:
        name: "default" compiles where no cache entry fits; "force_eager" runs everything in eager; "fail_on_recompile"
            uses entries that fit and raises `RecompileError` instead of compiling; "eager_on_recompile" uses entries
            that fit and runs the rest in eager.

    Raises:
        OptionError: no stance has this name.
    """

    def __init__(self, name: str) -> None:
        if name not in STANCES:
            raise unknown_name("stance", name, STANCES)
        self.name, self._before = name, _present.name
        _take(name)

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Use as a decorator: the stance is set only while the decorated function runs."""
        _take(self._before)
        name = self.name

        @functools.wraps(fn)
        def under_stance(*args: P.args, **kwargs: P.kwargs) -> R:
            with stance(name):
                return fn(*args, **kwargs)

        return under_stance

    def __enter__(self) -> stance:
        _take(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        _take(self._before)

    def __repr__(self) -> str:
        return f"stance({self.name!r})"


@special(stance, stance.__enter__, stance.__exit__)
def _not_captured(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """A change of the stance in captured code is a graph break."""
    raise Break("the stance is changed", "it decides what is compiled", "change it outside of the compiled function")
