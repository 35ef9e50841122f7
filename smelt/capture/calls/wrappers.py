"""Objects of C code that contain a function: residual code makes them at each call, with the same contents."""

from __future__ import annotations

import functools
from collections.abc import Callable

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.calls.calls import Args, Kwargs, call_native
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.registry import special
from smelt.capture.python.readers import is_bare


def _register_made(*kinds: type) -> None:
    """Register classes whose objects residual code makes by the same call as the program."""
    for kind in kinds:
        special(kind)(functools.partial(_make, kind))


def _make(kind: type, vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    out = call_native(vm, kind, args, kwargs)
    return _made(vm, out, kind, args, kwargs)


def _made(vm: Interpreter, out: object, kind: type, args: Args, kwargs: Kwargs) -> object:
    vm.keep(out)
    vm.python.created.add(id(out))
    vm.python.remade[id(out)] = (kind, args, kwargs)
    return out


_register_made(property, staticmethod, classmethod, functools._lru_cache_wrapper)


def _register_copy(method: Callable[..., object]) -> None:
    def copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
        out = call_native(vm, method, args, kwargs)
        if type(out) is not property:
            return out
        return _made(vm, out, property, (out.fget, out.fset, out.fdel, out.__doc__), {})

    special(method)(copy)


for _method in (property.getter, property.setter, property.deleter):
    _register_copy(_method)


def refuse_own_cache(vm: Interpreter, fn: functools._lru_cache_wrapper[object]) -> None:
    """Refuse a call of a cache that the frame has made: its entries would be values of the capture.

    Raises:
        Break: the frame made this cache.
    """
    if id(fn) in vm.python.created:
        raise Break(f"a call of {fn.__name__}, which has a cache that was made here", "what it does, it does once")


@special(functools.partial)
def make_partial(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `functools.partial(function, ...)`. If `function` is a partial, the new partial takes over its
    function and its present arguments.
    """
    outer = args[0] if args else None
    if isinstance(outer, functools.partial) and _is_merged(vm, outer):
        plain = vm.effects.plain
        function, first, named = (vm.load_attr(outer, name) for name in ("func", "args", "keywords"))
        args, kwargs = (function, *plain(first), *args[1:]), {**plain(named), **kwargs}
    return call_native(vm, functools.partial, args, kwargs)


def _is_merged(vm: Interpreter, outer: functools.partial[object]) -> bool:
    """Whether a new partial takes over the contents of `outer` instead of calling it: `outer` has no attribute
    dictionary.
    """
    if _NESTS_SUBCLASSES and type(outer).__call__ is not functools.partial.__call__:
        return False
    bare, source = is_bare(outer), vm.source_of(outer)
    if source is not None:
        vm.guards.check(sources.called(source, is_bare, "is_bare"), native.IS, bare)
    return bare and not any(target == id(outer) for _, target, _ in vm.effects.stores)


class _WithOwnCall(functools.partial[object]):
    def __call__(self, *args: object, **kwargs: object) -> object:
        raise NotImplementedError


_sample = _WithOwnCall(len)
_NESTS_SUBCLASSES = functools.partial(_sample).func is _sample
"""Whether `functools.partial` nests partials of a subclass instead of merging them, as CPython does from 3.13 on."""
