"""`functools.lru_cache`: results in the cache are the same objects in every call of the compiled function."""

from __future__ import annotations

import dis
import enum
import functools
import gc
import logging
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.calls.cache_counters import Cache, subtract_calls
from smelt.capture.calls.calls import Args, Kwargs, defer
from smelt.capture.calls.wrappers import refuse_own_cache
from smelt.capture.core import policy, sources
from smelt.capture.core.breaks import Break, UserError, user, user_raise
from smelt.capture.core.by_code import ByCode
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.registry import CALL
from smelt.capture.core.values import HEAP, LEAVES
from smelt.capture.python.attribute_reads import python_method
from smelt.graph.ir.symint import SYMBOLIC_CLASSES, pinned

_COMPARED = classes(*(kind for kind in LEAVES if kind not in SYMBOLIC_CLASSES))
_WITHOUT_STATE = (type, tuple, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


@CALL(functools._lru_cache_wrapper)
def call_cached(vm: Interpreter, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> object:
    """Call a function with `functools.lru_cache`: the cache itself if the arguments are plain, else the captured
    function.

    The cache is called during capture, and by a guard at each later check. An object is accepted as a key only if it is
    external and the first argument of a method, since the attributes that the method reads are not part of the key. If
    the cache does not contain the result, the function runs during capture. If eager would run it after writes, random
    draws or deferred calls, the function is captured instead. If the program could observe that a captured function
    runs in each call, while eager finds its result in the cache, the graph ends.

    Raises:
        Break: the function does more than compute.
    """
    if _logs(args):
        defer(vm, fn, args, kwargs)  # functions that log once per message: the cache decides when they run
        return None
    refuse_own_cache(vm, fn)
    objects = _hashed_objects(vm, (*args, *kwargs.values()))
    computes = not objects and _is_pure(fn.__wrapped__)
    args, named = (vm.effects.plain(each) for each in (args, tuple(kwargs.values())))
    if not computes:  # a symbolic number would stand for many keys of the cache
        args, named = pinned(args), pinned(named)
    kwargs = dict(zip(kwargs, named, strict=True))
    owner = _method_owner(vm, args, objects)
    if _may_call_cache(vm, fn, args if owner is None else args[1:], kwargs, owner):
        _refuse_eviction(fn, args, kwargs)
        return _call_cache(vm, fn, args, kwargs, owner)
    frozen = policy.is_frozen(fn.__wrapped__.__module__)
    if not computes and (_writes_state(fn.__wrapped__) or (objects and not frozen) or _is_after_effects(vm)):
        raise Break(f"a call of {fn.__name__}, which has a cache", "what it does, it does once")
    return _capture(vm, fn, args, kwargs, heard=computes and not frozen and _is_after_effects(vm))


def _capture(vm: Interpreter, fn: Cache, args: Args, kwargs: Kwargs, heard: bool) -> object:
    """Capture the wrapped function instead of calling its cache; `heard`: a call of the cache is also deferred, in
    order with other effects.

    Raises:
        Break: the result belongs to the program and may be written to.
    """
    value = vm.call(fn.__wrapped__, args, kwargs)
    if not policy.is_frozen(fn.__wrapped__.__module__) and _is_mutable(value):
        raise Break(f"a call of {fn.__name__}, which has a cache", "its result is the same object every time")
    if heard:
        vm.effects.defer(fn, args, kwargs)
    return value


def _is_mutable(value: object) -> bool:
    """Whether the result is a mutable object: a program can observe if a call returns a new one instead."""
    return isinstance(value, (list, dict, set, bytearray)) or type(value) is tuple and any(map(_is_mutable, value))


def _logs(args: Args) -> bool:
    return bool(args) and isinstance(args[0], logging.Logger)


def _hashed_objects(vm: Interpreter, values: Args) -> list[object]:
    """The arguments that are tensors or objects with mutable state."""
    for value in values:
        _find_hash(vm, value)
    return [value for value in values if _has_state(vm, value)]


def _method_owner(vm: Interpreter, args: Args, objects: list[object]) -> object:
    """The object whose method is cached, if it is the only argument with mutable state; else None."""
    return args[0] if args and objects == [args[0]] and _is_plain_object(vm, args[0]) else None


def _call_cache(
    vm: Interpreter, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs, owner: object
) -> object:
    """The result of the cache, which is called during capture; the call becomes a source, which guards evaluate.

    Args:
        owner: the object that is the first argument; None where all arguments are plain.
    """
    vm.keep(fn)
    kinds = tuple(map(type, (*args, *kwargs.values())))
    if owner is None:
        cached_call: _CachedCall | _CachedMethodCall = _CachedCall(args, tuple(kwargs.items()), kinds)
        given: object = fn
        source = vm.sources.get(id(fn)) or sources.const(fn, fn.__name__)
        text = f"{source.text}({cached_call})"
    else:
        cached_call = _CachedMethodCall(fn, _CachedCall(args[1:], tuple(kwargs.items()), kinds[1:]))
        given, source = owner, vm.sources[id(owner)]
        text = f"{fn.__name__}({source.text}, {cached_call.call})"
    try:
        value = user(cached_call, given)
    except UserError:
        subtract_calls(fn, misses=1)
        raise Break(f"a call of {fn.__name__}, which raises", "it is in no cache and is called each time") from None
    subtract_calls(fn, hits=1)
    return vm.external(value, sources.Source(source, native.CALL, cached_call, text))


def _refuse_eviction(fn: Cache, args: Args, kwargs: Kwargs) -> None:
    """Refuse a call that would evict a cached result: guards read all results before the first is used.

    Raises:
        Break: the cache is full and does not contain the result.
    """
    _, _, most, size = fn.cache_info()
    if most is not None and size >= most and (kwargs or not _is_cached(fn, args)):
        raise Break(f"a call of {fn.__name__}, whose cache is full", "another result leaves it")


def _has_state(vm: Interpreter, value: object) -> bool:
    """Whether an argument is a tensor or an object of the program: the attributes that a function reads are not part of
    the key.
    """
    kind = vm.type_of(value)
    if type(value) is tuple:
        return any(_has_state(vm, item) for item in value)
    if isinstance(value, torch.Tensor):
        return True
    if _is_plain(value) or issubclass(kind, _WITHOUT_STATE):
        return False
    return bool(kind.__flags__ & HEAP) and not policy.is_frozen(kind.__module__) or isinstance(value, torch.nn.Module)


def _is_plain_object(vm: Interpreter, value: object) -> bool:
    """Whether an object is external and its hash and equality have no side effects.

    False for a tensor: capture would use its trace tensor as the key.
    """
    if isinstance(value, torch.Tensor):
        return False
    methods = (getattr(type(value), name, None) for name in ("__hash__", "__eq__"))
    plain = all(type(each) is not types.FunctionType or _is_pure(each) for each in methods)
    return plain and id(value) in vm.sources


def _may_call_cache(
    vm: Interpreter, fn: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs, owner: object
) -> bool:
    """Whether the cache itself may be called during capture."""
    wrapped = fn.__wrapped__
    if type(wrapped) is not types.FunctionType or policy.is_frozen(wrapped.__module__):
        return False
    if not all(map(_is_plain, (*args, *kwargs.values()))) or owner is not None and _writes_state(wrapped):
        return False
    return (
        not _is_after_effects(vm, owner is None or not _is_pure(wrapped))
        or not kwargs
        and not any(getattr(call, "fn", None) is fn for call in vm.effects.deferred)
        and _is_cached(fn, args if owner is None else (owner, *args))
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple) and type(value).__hash__ is tuple.__hash__ and type(value).__eq__ is tuple.__eq__:
        return all(map(_is_plain, tuple.__iter__(value)))  # an equal tuple of a subclass is the same key
    return type(value) in _COMPARED or isinstance(value, (type, enum.Enum))


def _is_after_effects(vm: Interpreter, draws: bool = True) -> bool:
    """Whether a function that runs during capture would run before effects that precede it in the program; `draws`: the
    function may draw random numbers.
    """
    pending = vm.effects.pending() or vm.effects.deferred or vm.tensors.mutated
    return bool(pending or draws and vm.tensors.drawing)


def _is_pure(function: object, depth: int = 0) -> bool:
    """Whether a function only computes a result from its arguments, judged by the names in its code.

    Its globals have to be functions of the same kind, modules and classes of Python and torch, and plain data.
    """
    if type(function) is not types.FunctionType or depth > _MAX_CALL_DEPTH:
        return False
    code = function.__code__
    known = _known_pure.get(code)
    if known is None:
        _known_pure.put(code, True)  # ends recursion
        known = _known_pure.put(code, _names_only_stateless(function, code, depth))
    return known


def _names_only_stateless(function: types.FunctionType, code: types.CodeType, depth: int) -> bool:
    if code.co_freevars or any(name in _IMPURE_NAMES for name in code.co_names) or _writes_state(function):
        return False
    if any(
        isinstance(const, types.CodeType) and not _names_only_stateless(function, const, depth)
        for const in code.co_consts
    ):
        return False
    return all(_is_stateless(function.__globals__[n], depth) for n in code.co_names if n in function.__globals__)


def _writes_state(function: object) -> bool:
    """Whether a function writes to attributes or global variables; such a function must run as often as in eager."""
    code = getattr(function, "__code__", None)
    return code is not None and any(each.opname in _STORES for each in dis.get_instructions(code))


def _is_stateless(value: object, depth: int) -> bool:
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return policy.is_frozen(getattr(value, "__module__", None) or getattr(value, "__name__", None))
    return type(value) in LEAVES or _is_pure(value, depth + 1)


_STORES = frozenset("STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL".split())
_MAX_CALL_DEPTH = 4
_known_pure: ByCode[bool] = ByCode()
_IMPURE_NAMES = frozenset("print open input exec eval globals setattr delattr random rand randn seed time warn".split())


def _is_cached(fn: functools._lru_cache_wrapper[object], args: Args) -> bool:
    """Whether the cache certainly contains a result for these arguments; False for keyword arguments and typed caches.

    The cache is a C object: its table is found through the garbage collector.
    """
    if fn.cache_parameters()["typed"]:
        return False
    key = args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    return any(type(table) is dict and key in table for table in gc.get_referents(fn) if table is not vars(fn))


@dataclass(frozen=True)
class _CachedCall:
    """A call of a cached function, which guards repeat. It changes the cache's counters, so it runs after all other
    guards.
    """

    evaluated_last: ClassVar[bool] = True
    args: Args
    kwargs: tuple[tuple[str, object], ...]
    kinds: tuple[type, ...]

    def __call__(self, fn: Callable[..., object]) -> object:
        return fn(*self.args, **dict(self.kwargs))

    def __str__(self) -> str:
        return ", ".join([*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs)])


@dataclass(frozen=True)
class _CachedMethodCall:
    """A call of a cached method, on the object that it is given."""

    evaluated_last: ClassVar[bool] = True
    fn: Callable[..., object]
    call: _CachedCall

    def __call__(self, owner: object) -> object:
        return self.fn(owner, *self.call.args, **dict(self.call.kwargs))


def _find_hash(vm: Interpreter, value: object) -> None:
    """Hash an argument as the cache would: errors and the program's own `__hash__` occur as in eager."""
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
