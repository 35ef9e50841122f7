"""Notes that a program depends on hashes that differ between processes, mostly through the order of a set.

Python salts the hashes of strings anew in each process, and hashes of other objects derive from their addresses. Within
one process the order of equal sets made in equal steps stays the same, so only artefacts need a guard for it.
"""

from __future__ import annotations

import builtins
import collections
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator

from smelt.base.class_tables import ClassTable, by_class, classes, isinstance
from smelt.capture.core.interface import Args, Interpreter, Kwargs

_FIXED = classes(bool, int, float, complex, *([types.NoneType] if sys.version_info >= (3, 12) else []))
"""Classes whose hashes are the same in every process; before 3.12, the hash of None is its address."""

_NESTING = (list, tuple, dict, set, frozenset, collections.deque)

_SET_OPERATORS = (operator.and_, operator.or_, operator.xor, operator.sub, operator.iand, operator.ixor, operator.isub)

_WITHOUT_ORDER = frozenset(
    id(fn)
    for fn in (
        *(set, frozenset, len, bool, id, type, any, all, isinstance, builtins.isinstance, callable, getattr, hasattr),
        *(setattr, functools.partial, types.MethodType, weakref.ref, operator.not_, operator.truth, operator.getitem),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.is_, operator.is_not),
        *(operator.contains, operator.delitem, operator.length_hint, *_SET_OPERATORS),
    )
)
"""Ids of C functions whose result does not show the order of a set, wherever it is in their arguments."""

_MAKING = frozenset(map(id, (set, frozenset, operator.ior, *_SET_OPERATORS)))
"""Ids of C functions that make sets of sets."""

_COMPARING = frozenset("__contains__ __len__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__".split())
"""Methods of sets that neither make nor change a set."""

_IN_PLACE = {id(operator.iadd): "__iadd__", id(operator.ior): "__ior__", id(operator.setitem): "__setitem__"}
"""Ids of operators that change a container, with the methods that they call."""

_SORTING = frozenset(map(id, (sorted, min, max)))

_TOTALLY_ORDERED = classes(bool, int, float, str, bytes)

_OF_ITEMS = frozenset(map(id, (list, tuple, enumerate, zip, map, filter, reversed, collections.deque, dict.fromkeys)))
"""Ids of C functions that iterate arguments, and not the items of these."""

_TEXTS = frozenset("__repr__ __str__ __format__ __hash__ __reduce__ __reduce_ex__".split())
"""Methods that read the order of the container that they belong to, and of sets in it."""

_TAKING = frozenset({"pop", "__iter__"})
"""Methods of sets that read the order of the set that they belong to."""

_OF_ARGUMENTS: ClassTable[frozenset[str]] = by_class(
    {
        **dict.fromkeys((object, type, BaseException, set, frozenset), frozenset[str]()),
        **dict.fromkeys((list, collections.deque), frozenset({"extend", "extendleft", "__iadd__", "__init__"})),
        tuple: frozenset({"__new__"}),
        **dict.fromkeys((dict, collections.OrderedDict), frozenset("update __init__ __ior__ __or__ __ror__".split())),
    }
)
"""For each of these classes, its methods that iterate their arguments. The others store, find or compare them, or make
a set of them, whose order is noted once it is read.
"""


def note_order(vm: Interpreter, value: object) -> None:
    """Note that the items of a value are read in order, if it is a set whose order differs between processes."""
    if _is_salted(value):
        _note_hashes(vm, _items(value))


def note_reads(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> None:
    """Note that a call of a C function reads the order of a set in its arguments, or a hash."""
    if vm.guards.address_order:
        return
    if _makes_sets(fn):
        for value in args:
            if _is_mixed(value):  # what is left of it may seem to have an order of its own
                _note_hashes(vm, _items(value))
    if id(fn) not in _WITHOUT_ORDER:
        for value in _read_by(fn, args, kwargs):
            note_order(vm, value)
        if fn is hash or getattr(fn, "__name__", None) == "__hash__":
            _note_hashes(vm, args or (getattr(fn, "__self__", None),))


def _note_hashes(vm: Interpreter, values: Iterable[object]) -> None:
    for value in _leaves(values):
        if _is_of_address(value):
            vm.guards.hash_order = vm.guards.address_order = True
        elif not _is_fixed(value):
            vm.guards.hash_order = True


def _leaves(values: Iterable[object]) -> Iterator[object]:
    """The values, with items in place of tuples and frozen sets, whose hashes follow from those of their items."""
    for value in values:
        if isinstance(value, (tuple, frozenset)):
            yield from _leaves(_items(value))
        else:
            yield value


def _is_of_address(value: object) -> bool:
    """Whether a hash follows from an address: that of an object without `__hash__`, of a C function or a method, or of
    a float that is no number.
    """
    if type(value) is float:
        return value != value
    return type.__getattribute__(type(value), "__hash__") is _BY_ADDRESS or isinstance(value, _CALLABLES)


_BY_ADDRESS = object.__hash__
_CALLABLES = (types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
"""Classes whose hashes follow from the addresses of a C function or an object."""


def are_salted(items: Collection[object]) -> bool:
    """Whether these are several items of a set, and some have other hashes in other processes."""
    return len(items) > 1 and not all(map(_is_fixed, items))


def _is_salted(value: object) -> bool:
    return _count(value) > 1 and not all(map(_is_fixed, _items(value)))


def _is_mixed(value: object) -> bool:
    """Whether some items of a set have other hashes in other processes, and some have the same."""
    return _count(value) > 1 and len({_is_fixed(item) for item in _items(value)}) == 2


def _is_fixed(item: object) -> bool:
    """Whether an item has the same hash in every process."""
    return type(item) in _FIXED and item == item


def _count(value: object) -> int:
    """The number of items of a set, by the method of its base, as a subclass may count calls; 0 for other values."""
    if isinstance(value, set):
        return set.__len__(value)
    return frozenset.__len__(value) if isinstance(value, frozenset) else 0


def _makes_sets(fn: Callable[..., object]) -> bool:
    owner = getattr(fn, "__objclass__", None)
    return id(fn) in _MAKING or (owner is set or owner is frozenset) and fn.__name__ not in _COMPARING


def _read_by(fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Iterable[object]:
    """The values of which a C function may read the items in order: arguments and what they hold."""
    if id(fn) in _SORTING and kwargs.get("key") is None:
        return [value for value in args if not all(type(item) in _TOTALLY_ORDERED for item in _items(value))]
    if id(fn) in _IN_PLACE and isinstance(args[0], _NESTING):
        kind = next(each for each in _NESTING if isinstance(args[0], each))
        return _read_by_method(kind, _IN_PLACE[id(fn)], args)
    values = (*args, *kwargs.values())
    if id(fn) in _OF_ITEMS:
        return values
    owner = getattr(fn, "__objclass__", None)
    if owner is not None:
        return _read_by_method(owner, fn.__name__, values)
    own = getattr(fn, "__self__", None)
    if own is not None and not isinstance(own, (types.ModuleType, type)):
        return _read_by_method(type(own), fn.__name__, (own, *values))
    return _nested(args if fn is dict else values)


def _read_by_method(owner: type, name: str, values: Args) -> Iterable[object]:
    if owner not in _OF_ARGUMENTS or name in _TEXTS:
        return _nested(values)
    if name in _TAKING:
        return values[:1]
    if name == "__setitem__":
        return values[2:] if type(values[1]) is slice else ()
    return _nested(values[1:]) if name in _OF_ARGUMENTS[owner] else ()


def _nested(values: Iterable[object]) -> Iterable[object]:
    """The containers among values, and those that they hold, each once."""
    pending, seen = [value for value in values if type(value) not in _FIXED], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen or not isinstance(value, _NESTING):
            continue
        seen.add(id(value))
        yield value
        inside = (*dict.keys(value), *dict.values(value)) if isinstance(value, dict) else _items(value)
        pending.extend(item for item in inside if type(item) not in _FIXED)


def _items(value: object) -> Iterable[object]:
    """The items of a list, tuple, set or deque, without methods of a subclass."""
    for kind in _OWN_ITERATION:
        if isinstance(value, kind):
            return vars(kind)["__iter__"](value)
    return ()


_OWN_ITERATION = (list, tuple, set, frozenset, collections.deque)
