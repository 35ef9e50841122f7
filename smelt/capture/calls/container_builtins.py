"""Captured forms of builtin functions and methods that iterate, read or change containers."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture.calls import calls
from smelt.capture.core import sources
from smelt.capture.core.breaks import user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.registry import special
from smelt.capture.core.unbacked_text import refuse_unknown
from smelt.capture.core.values import LEAVES
from smelt.capture.python import containers
from smelt.capture.python.attribute_reads import python_method, refuses
from smelt.capture.python.effects import CONTAINERS, hashes, refuse_past_order
from smelt.capture.python.operators import BINARY, COMPARISONS, UNARY, binary, compare, unary
from smelt.graph.trace.trace import TraceTensor


def _iterable(
    vm: Interpreter, value: object, plain: Callable[[object], object] | None = None, fn: object = None
) -> object:
    """The argument as an object that C code may iterate. If its class defines iteration in Python, the result is the
    items, which the interpreter has iterated.

    Args:
        plain: converts an external container to a plain one; by default nested containers are converted as well.
        fn: the C function that will iterate. Constructors of sets copy an instance of a subclass of set without
            calling its methods.
    """
    plain = plain or vm.effects.plain
    if type(value) in LEAVES:
        return value
    if type(value) is TraceTensor or type(value) is PrologueValue:
        return containers.iterate(vm, value)
    if isinstance(value, CONTAINERS) and (
        python_method(vm, value, "__iter__") is None or fn in _SETS and isinstance(value, _SETS)
    ):
        return plain(value)
    if python_method(vm, value, "__iter__") is None and not (
        python_method(vm, value, "__getitem__") and hasattr(type(value), "__len__")
    ):
        vm.effects.refuse_iterators((value,))
        vm.effects.refuse_unguarded(value)
        return plain(value)
    return containers.iterate(vm, value)


_SETS = (set, frozenset)


def _register_iterating() -> None:
    for fn, first in ((list, 0), (tuple, 0), (set, 0), (frozenset, 0), (enumerate, 0), (zip, 0), (map, 1), (filter, 1),
                      (sum, 0), (any, 0), (all, 0), (sorted, 0), (collections.deque, 0)):  # fmt: skip

        def consume(vm: Interpreter, args: Args, kwargs: Kwargs, fn: Any = fn, first: int = first) -> object:
            count = len(args) if fn in (zip, map) else first + 1
            plain = vm.effects.mirror if calls.returns_items(fn, kwargs) else None
            head = tuple(_iterable(vm, a, plain, fn) if first <= i < count else a for i, a in enumerate(args))
            if fn in (list, tuple, sorted) and args and not isinstance(head[0], CONTAINERS):
                containers.ask_length(vm, args[0])
            if fn in (any, all, sorted) and head and isinstance(head[0], CONTAINERS):
                vm.effects.refuse_foreign(*head[0])
            return calls.call_native(vm, fn, head, kwargs)

        special(fn)(consume)
    for pick in (min, max):

        def choose(vm: Interpreter, args: Args, kwargs: Kwargs, fn: Callable[..., object] = pick) -> object:
            if len(args) == 1:
                plain = vm.effects.mirror if calls.returns_items(fn, kwargs) else None
                args = (_iterable(vm, args[0], plain),)
                if isinstance(args[0], CONTAINERS):
                    vm.effects.refuse_foreign(*args[0])
            return calls.call_native(vm, fn, args, kwargs)

        special(pick)(choose)


_register_iterating()


def _operator(fn: Callable[..., object], count: int, meaning: Callable[..., object]) -> None:
    """Register the captured form of a function of the operator module with `count` arguments, which calls methods of
    the operands that are written in Python.
    """

    def operate(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
        return meaning(vm, *args) if len(args) == count and not kwargs else user(fn, *args, **kwargs)

    special(fn)(operate)


def _register_operators() -> None:
    for fn in BINARY:
        _operator(fn, 2, lambda vm, left, right, fn=fn: binary(vm, fn, left, right))
    for fn in COMPARISONS:
        _operator(fn, 2, lambda vm, left, right, fn=fn: compare(vm, fn, left, right))
    for fn in UNARY:
        _operator(fn, 1, lambda vm, value, fn=fn: unary(vm, fn, value))
    _operator(operator.getitem, 2, containers.subscript)
    _operator(operator.setitem, 3, containers.store_item)
    _operator(operator.delitem, 2, containers.delete_item)
    _operator(operator.contains, 2, containers.contains)


_register_operators()


@special(sum)
def total(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `sum(iterable[, start])`."""
    items = vm.native(list, _iterable(vm, args[0])) if args else user(sum)
    start = args[1] if len(args) > 1 else kwargs.get("start", 0)
    if any(type(item) is TraceTensor for item in items) or type(start) is TraceTensor:
        for item in items:
            start = binary(vm, operator.add, start, item)
        return start
    if any(isinstance(item, CONTAINERS) for item in items):
        return functools.reduce(functools.partial(binary, vm, operator.add), items, start)
    vm.effects.refuse_foreign(*items, start)
    return vm.native(sum, items, start)


@special(reversed)
def reverse(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `reversed(sequence)`."""
    method = python_method(vm, args[0], "__reversed__")
    if method is not None:
        return vm.call(method, args, {})
    if python_method(vm, args[0], "__getitem__") is not None and not refuses(vm, args[0], "__reversed__"):
        count = containers.length(vm, args[0])
        return iter([containers.subscript(vm, args[0], i) for i in range(count - 1, -1, -1)])
    sequence = vm.effects.mirror(args[0])
    vm.effects.refuse_unguarded(sequence)
    vm.effects.refuse_foreign(sequence)
    return vm.native(reversed, sequence)


def as_mapping(vm: Interpreter, value: object) -> object:
    """A plain dict with the contents of a mapping whose methods are written in Python; the interpreter runs them."""
    if isinstance(value, dict) and python_method(vm, value, "__iter__") is None:
        return vm.effects.plain(value)
    if python_method(vm, value, "keys") is not None:
        keys = containers.each(vm, vm.call(vm.load_attr(value, "keys"), (), {}))
        return {key: containers.subscript(vm, value, key) for key in keys}
    return _iterable(vm, value)


@special(dict)
def make_dict(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `dict(mapping or iterable, **kwargs)`."""
    return calls.call_native(vm, dict, tuple(as_mapping(vm, a) for a in args), kwargs)


@special(dict.get)
def dict_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `dict.get(key[, default])`."""
    container, key, *default = args
    source = vm.sources.get(id(container))
    if source is None or id(container) in vm.effects.mirrors or hashes(key):
        return vm.native(dict.get, vm.effects.mirror(container), key, *default)
    if vm.effects.has_key(container, source, key):
        return vm.effects.read_key(container, source, key)
    return default[0] if default else None


@special(dict.__getitem__, collections.OrderedDict.__getitem__)
def dict_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `dict.__getitem__(key)`."""
    return containers.dict_item(vm, *args)


@special(containers.MAKING)
def make_missing(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `defaultdict.__missing__(key)`."""
    return containers.make_item(vm, *args)


@special(dict.__contains__)
def dict_contains(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `dict.__contains__(key)`."""
    container, key = args
    source = vm.sources.get(id(container))
    if source is None or id(container) in vm.effects.mirrors or hashes(key):
        return vm.native(dict.__contains__, vm.effects.mirror(container), key)
    return vm.effects.has_key(container, source, key)


@special(list.__getitem__, tuple.__getitem__)
def sequence_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `list.__getitem__(index)`."""
    container, key = args
    source = vm.sources.get(id(container))
    base = list if isinstance(container, list) else tuple
    if source is None or not vm.effects.untouched(container) or type(key) is not int:
        return vm.native(base.__getitem__, vm.effects.mirror(container), key)
    return vm.external(user(base.__getitem__, container, key), sources.sequence_item(source, key, type(container)))


@special(dict.update, dict.__init__)
def dict_update(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `dict.update(mapping, **kwargs)`."""
    refuse_past_order(dict.update, args)
    ordered_update(vm, args, kwargs)


@special(collections.OrderedDict.update, collections.OrderedDict.__init__)
def ordered_update(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `OrderedDict.update(mapping, **kwargs)`, also used for `dict.update`."""
    container, *given = args
    target = containers.writable(vm, container)
    store = python_method(vm, container, "__setitem__") if isinstance(container, collections.OrderedDict) else None
    pairs = [as_mapping(vm, value) for value in given]
    if store is None:
        update = _UPDATE if isinstance(container, collections.OrderedDict) else dict.update
        vm.native(update, target, *pairs, **kwargs)
        return
    for key, value in dict(*pairs, **kwargs).items():
        vm.call(store, (container, key, value), {})


_UPDATE = collections.OrderedDict.update


@special(list.append)
def list_append(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `list.append(object)`."""
    vm.effects.append(*args)


@special(list.extend)
def list_extend(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `list.extend(iterable)`."""
    container, more = args
    vm.native(list.extend, containers.writable(vm, container), _iterable(vm, more))


@special(str.join)
def join(vm: Interpreter, args: Args, kwargs: Kwargs) -> str:
    """Captured form of `str.join(iterable)`."""
    pieces = _iterable(vm, args[1])
    pieces = pieces if isinstance(pieces, (list, tuple)) else vm.native(list, pieces)
    refuse_unknown((args[0], pieces))
    return vm.native(str.join, args[0], pieces)
