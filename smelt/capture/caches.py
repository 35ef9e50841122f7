"""`functools.lru_cache`: what a cache holds stays what it is, also from call to call of the compiled function."""

from __future__ import annotations

import enum
import functools
import gc
import logging
import types
from dataclasses import dataclass
from typing import Any

from smelt.capture import _native as native
from smelt.capture import policy, sources
from smelt.capture.attributes import python_method
from smelt.capture.breaks import UserError, user, user_raise
from smelt.capture.calls import Args, Kwargs, defer
from smelt.capture.registry import CALL
from smelt.capture.values import LEAVES
from smelt.graph.symint import SYMBOLIC

_COMPARED = LEAVES - {*SYMBOLIC}


@CALL(functools._lru_cache_wrapper)
def call_cached(vm: Any, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """functools.lru_cache: the cache is asked where its arguments are plain, else the function is captured.

    The cache is asked again whenever guards are. A function that was not called yet runs then, as eager runs it, so it
    is captured as well where that would be out of turn: after writes, draws of random numbers and deferred calls.
    """
    if args and isinstance(args[0], logging.Logger):
        return defer(vm, fn, args, kwargs)  # logging through it stays once-only
    for value in (*args, *kwargs.values()):
        _find_hash(vm, value)
    if _may_ask(vm, fn, args, kwargs):
        asked = _Asked(args, tuple(kwargs.items()), tuple(map(type, (*args, *kwargs.values()))))
        try:
            value = user(asked, fn)
        except UserError:  # it is in no cache
            return vm.call(fn.__wrapped__, args, kwargs)
        vm.keep(fn)
        source = vm.sources.get(id(fn)) or sources.const(fn, fn.__name__)
        return vm.external(value, sources.Source(source, native.CALL, asked, f"{source.text}({asked})"))
    return vm.call(fn.__wrapped__, args, kwargs)


def _may_ask(vm: Any, fn: Any, args: Args, kwargs: Kwargs) -> bool:
    wrapped = fn.__wrapped__
    if type(wrapped) is not types.FunctionType or policy.is_frozen(wrapped.__module__) or id(fn) in vm.created:
        return False
    if not all(type(value) in _COMPARED or isinstance(value, (type, enum.Enum)) for value in (*args, *kwargs.values())):
        return False
    late = vm.effects.pending() or vm.effects.deferred or vm.tensors.drawing or vm.tensors.mutated
    return not late or not kwargs and _is_held(fn, args)


def _is_held(fn: Any, args: Args) -> bool:
    """Whether a result for these arguments is surely there; what is held by keyword, or by type too, is not seen.

    The cache is a C object: its table is found as the garbage collector finds it.
    """
    if fn.cache_parameters()["typed"]:
        return False
    key = args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    return any(type(table) is dict and key in table for table in gc.get_referents(fn) if table is not vars(fn))


@dataclass(frozen=True)
class _Asked:
    """A call of a cached function."""

    args: Args
    kwargs: tuple[tuple[str, Any], ...]
    kinds: tuple[type, ...]

    def __call__(self, fn: Any) -> Any:
        return fn(*self.args, **dict(self.kwargs))

    def __str__(self) -> str:
        return ", ".join([*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs)])


def _find_hash(vm: Any, value: Any) -> None:
    """What a cache does with an argument: the program sees where there is no hash, and what its own `__hash__` does."""
    if type(value) is tuple:
        for item in value:
            _find_hash(vm, item)
        return
    kind = vm.type_of(value)
    method = python_method(vm, value, "__hash__")
    if method is not None:
        vm.call(hash, (value,), {})
    elif kind.__hash__ is None:
        user_raise(TypeError(f"unhashable type: {kind.__name__!r}"))
