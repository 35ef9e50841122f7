"""The public functions that control capture from inside a program: disable, break, allow, substitute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.calls import calls
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import F, constant, special
from smelt.capture.tensors.torch_calls import call_torch


def disable(fn: Any = None, recursive: bool = True, reason: str | None = None) -> object:
    """A function that is never captured: calling it from compiled code is a graph break.

    Args:
        fn: the function; without it, a decorator is returned.
        recursive: whether the functions that it calls are not captured either.
        reason: a text that `explain` shows.
    """
    if fn is None:
        return lambda function: disable(function, recursive, reason)

    @functools.wraps(fn)
    def disabled(*args: object, **kwargs: object) -> object:
        return native.uncaptured_call(fn, *args, **kwargs) if recursive else fn(*args, **kwargs)

    if not recursive and isinstance(fn, FunctionType):
        native.skip(fn.__code__)
    disabled._smelt_disabled = reason or "smelt.disable marks it"  # type: ignore[attr-defined]
    return disabled


def graph_break() -> None:
    """End the graph here. Does nothing outside of compiled code."""


def is_compiling() -> bool:
    """Whether the calling code is captured: True while capture interprets it, False if it runs uncompiled."""
    return False


def allow_in_graph(fn: Callable[..., object]) -> Callable[..., object]:
    """Put calls of `fn` into graphs as one node each, without capturing its body. The function must act only on
    tensors.
    """
    special(fn)(functools.partial(_as_one_node, fn))
    return fn


def assume_constant_result(fn: Callable[..., object]) -> Callable[..., object]:
    """Run `fn` once during capture and use its result (plain data) as a constant."""
    special(fn)(functools.partial(_as_constant, fn))
    return fn


def substitute_in_graph(original: Callable[..., object]) -> Callable[[F], F]:
    """A decorator: compiled code runs the decorated function instead of `original`, which cannot be captured.

    Args:
        original: the function to replace, for instance a C function. Outside of compiled code it is called unchanged.
    """
    if not callable(original):
        raise TypeError(f"substitute_in_graph takes a function, and this is a {type(original).__name__}")

    def substitute(fn: F) -> F:
        special(original)(functools.partial(_substitute, fn))
        return fn

    return substitute


def _substitute(fn: object, vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    return vm.call(fn, args, kwargs)


def _as_one_node(fn: object, vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    return call_torch(vm, fn, args, kwargs)


def _as_constant(fn: Callable[..., object], vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    return calls.call_native(vm, fn, args, kwargs)


@special(graph_break)
def _break_here(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `graph_break()`."""
    raise Break("graph_break() is called")


constant(True, is_compiling)
