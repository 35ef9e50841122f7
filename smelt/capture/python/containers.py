"""Items, length, membership, iteration and truth of values, as Python's operators and statements use them."""

from __future__ import annotations

import collections.abc
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.arrays.array import as_index, has_arrays
from smelt.capture.core.breaks import Break, UserError, is_programs, user, user_raise
from smelt.capture.core.foreign_memory import refuse_windows
from smelt.capture.core.generators import TracedGenerator
from smelt.capture.core.interface import NO_OVERRIDE, Interpreter
from smelt.capture.core.prologue_value import PrologueValue, values_in
from smelt.capture.core.sources import Source, sequence_item
from smelt.capture.core.values import LEAVES, is_equal_to_itself
from smelt.capture.python.attribute_reads import MISS, find_in_class, python_method, refuses
from smelt.capture.python.effects import CONTAINERS, hashes
from smelt.capture.python.hash_order import note_order
from smelt.capture.python.operators import compare
from smelt.capture.python.unbacked_slices import known_slices, set_unknown_item, unknown_item
from smelt.graph.ir.symint import has_symint
from smelt.graph.trace.trace import TraceTensor

_ITERATORS = collections.abc.Iterator


def truth(vm: Interpreter, value: object) -> bool:
    """`bool(value)`"""
    kind = type(value)
    if kind in LEAVES:
        return bool(value)
    if type(value) is TraceTensor and python_method(vm, value, "__bool__") is None:
        known = vm.tensors.speculation.value(value)
        if known is None:
            raise tensor_value("a branch on a tensor's value")
        return user(bool, known)
    if kind is PrologueValue:
        return bool(vm.prologue.known(vm.prologue.run(bool, (value,), {})))
    if isinstance(value, CONTAINERS) and python_method(vm, value, "__bool__") is None:
        return length(vm, value) != 0
    method = python_method(vm, value, "__bool__")
    if method is not None:
        answer = vm.call(method, (value,), {})
        if vm.type_of(answer) is not bool:
            user_raise(TypeError(f"__bool__ should return bool, returned {vm.type_of(answer).__name__}"))
        return truth(vm, answer) if type(answer) is PrologueValue else answer
    method = python_method(vm, value, "__len__")
    if method is not None and not refuses(vm, value, "__bool__"):
        return _counted(vm, method, value) != 0
    if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
        vm.effects.refuse_foreign(value)
        return vm.native(bool, vm.effects.plain(value))
    return True


def tensor_value(title: str) -> Break:
    """The break where Python needs a tensor's value."""
    return Break(
        title,
        "the graph is captured before values are known",
        "torch.where(condition, a, b), or move the decision out of the compiled function",
    )


def length(vm: Interpreter, value: object) -> int:
    """`len(value)`"""
    if type(value) is TraceTensor and python_method(vm, value, "__len__") is None:
        return value.shape[0] if value.dim() else user(len, value)  # `len` of a symbolic size would make it static
    if type(value) is PrologueValue:
        return vm.prologue.length(value)
    value = vm.effects.copies.own(value)
    method = python_method(vm, value, "__len__")
    if method is not None:
        return _counted(vm, method, value)
    source = vm.sources.get(id(value))
    if source is not None and isinstance(value, (list, tuple, dict)) and vm.effects.untouched(value):
        count = dict.__len__(value) if isinstance(value, dict) else len(value)
        vm.guards.check(source, native.LEN, count)
        return count
    vm.effects.refuse_unguarded(value)
    vm.effects.refuse_foreign(value)
    return user(len, vm.effects.mirror(value))


def _counted(vm: Interpreter, method: object, value: object) -> int:
    """The result of a `__len__` written in Python, checked and converted as in `len`."""
    count = vm.call(method, (value,), {})
    if vm.type_of(count) is bool or type(count) in LEAVES and type(count) is not int:
        count = int(user(operator.index, count))
    elif vm.type_of(count) is not int:
        raise Break(f"__len__ returns a {vm.type_of(count).__name__}", "its __index__ says how much that is")
    if count < 0:
        user_raise(ValueError("__len__() should return >= 0"))
    return user(len, range(count)) if type(count) is int else count  # raises for counts beyond sys.maxsize


def tensor_key(vm: Interpreter, tensor: object, key: object) -> object:
    """The index for a tensor; a sequence of number tensors in it becomes one tensor, as in torch."""
    key = vm.effects.plain(key)
    if vm.python.arrays and has_arrays(key):
        key = as_index(key)
    if type(tensor) is TraceTensor:
        key = known_slices(vm, tensor, key)
    if type(key) is not tuple:
        return key
    return tuple(vm.tensors.run(torch.stack, (list(item),), {}) if _are_numbers(item) else item for item in key)


def _are_numbers(item: object) -> bool:
    if not (type(item) is list or type(item) is tuple) or not item:
        return False
    return all(type(each) is TraceTensor and not each.dim() and each.dtype == torch.int64 for each in item)


def _tensor_item(vm: Interpreter, obj: object, key: object) -> object:
    replaced = python_method(vm, obj, "__getitem__") if type(obj) is TraceTensor else None
    if replaced is not None:
        return vm.call(replaced, (obj, key), {})
    if vm.subclasses.present and (out := vm.subclasses.intercept(operator.getitem, (obj, key), {})) is not NO_OVERRIDE:
        return out  # the index is of a subclass
    item = unknown_item(vm, obj, key) if type(obj) is TraceTensor and has_symint(key) else NotImplemented
    if item is not NotImplemented:
        return item
    return vm.tensors.run(operator.getitem, (obj, tensor_key(vm, obj, key)), {})


def subscript(vm: Interpreter, obj: object, key: object) -> object:
    """`obj[key]`"""
    obj = vm.effects.copies.own(obj)
    kind = type(obj)
    if type(obj) is TraceTensor or type(key) is TraceTensor and not issubclass(kind, dict):
        return _tensor_item(vm, obj, key)
    if kind is PrologueValue:
        return vm.prologue.run(operator.getitem, (obj, key), {})
    source = vm.sources.get(id(obj))
    if type(key) not in LEAVES and isinstance(obj, _INDEXED):
        key = index(vm, key)
    if source is None and kind in _DIRECT and (kind is not dict or is_equal_to_itself(key)):
        return user(operator.getitem, obj, key)
    if isinstance(obj, type):
        return _class_item(vm, obj, key)
    method = python_method(vm, obj, "__getitem__")
    if method is not None:
        return vm.call(method, (obj, key), {})
    if isinstance(obj, dict):
        return dict_item(vm, obj, key)
    if source is None:
        return vm.native(operator.getitem, obj, vm.effects.plain(key))
    return external_item(vm, obj, source, key)


_INDEXED = (list, tuple, str, bytes, range, collections.deque)


def index(vm: Interpreter, key: object) -> object:
    """The index for a sequence, in which objects with an `__index__` written in Python are replaced by its results."""
    if type(key) is slice:
        bounds = [index(vm, bound) for bound in (key.start, key.stop, key.step)]
        same = all(a is b for a, b in zip(bounds, (key.start, key.stop, key.step), strict=True))
        return key if same else slice(*bounds)
    method = python_method(vm, key, "__index__") if type(key) not in LEAVES and type(key) is not TraceTensor else None
    return key if method is None else vm.call(method, (key,), {})


_DIRECT = classes(list, tuple, dict, str, bytes, range)


def external_item(vm: Interpreter, obj: object, source: Source, key: object) -> object:
    """An item of an external builtin sequence, or of an instance of a subclass of one."""
    if not vm.effects.untouched(obj):
        return vm.native(operator.getitem, vm.effects.mirror(obj), key)
    if isinstance(obj, (list, tuple)) and type(key) is int:
        count = list.__len__(obj) if isinstance(obj, list) else tuple.__len__(obj)
        if not -count <= key < count:
            vm.guards.check(source, native.LEN, count)
        value = user(list.__getitem__ if isinstance(obj, list) else tuple.__getitem__, obj, key)
        return vm.external(value, sequence_item(source, key, type(obj)))
    if isinstance(obj, CONTAINERS):
        return vm.effects.original(vm.native(operator.getitem, vm.effects.mirror(obj), vm.effects.plain(key)))
    raise Break(
        f"an item of a {type(obj).__name__}", "the object was made outside of the function, and C code reads it"
    )


def dict_item(vm: Interpreter, container: dict[object, object], key: object) -> object:
    """`dict.__getitem__(container, key)`: for a missing key it calls `__missing__` of the dictionary's class."""
    source = vm.sources.get(id(container))
    if source is not None and vm.effects.untouched(container) and not hashes(key):
        if vm.effects.has_key(container, source, key):
            return vm.effects.read_key(container, source, key)
    else:
        item = vm.native(dict.get, vm.effects.mirror(container), vm.effects.plain(key), END)
        if item is not END:
            return item
    missing = find_in_class(vm, type(container), "__missing__")
    if missing is MISS:
        user_raise(KeyError(key))
    if missing is MAKING:
        return make_item(vm, container, key)
    if not isinstance(missing, types.FunctionType):
        raise Break(f"an item that a {type(container).__name__} has not", "its __missing__ is not a function")
    return vm.call(missing, (container, key), {})


MAKING = vars(collections.defaultdict)["__missing__"]


def make_item(vm: Interpreter, container: object, key: object) -> object:
    """The item that a `defaultdict` makes for a missing key."""
    container = vm.effects.original(container)
    factory = vm.load_attr(container, "default_factory")
    if factory is None:
        user_raise(KeyError(key))
    item = vm.call(factory, (), {})
    store_item(vm, container, key, item)
    return item


def _class_item(vm: Interpreter, cls: type, key: object) -> object:
    meta = find_in_class(vm, type(cls), "__getitem__")
    if isinstance(meta, types.FunctionType):
        module = meta.__module__
        return vm.native(operator.getitem, cls, key) if module == "enum" else vm.call(meta, (cls, key), {})
    given = (cls, *key) if type(key) is tuple else (cls, key)
    if any(id(each) in vm.python.made_classes for each in given):
        raise Break(f"{cls.__name__}[...]", "each call makes another class", "define it outside of the function")
    return vm.native(operator.getitem, cls, key)


def _store_tensor_item(vm: Interpreter, obj: TraceTensor, key: object, value: object) -> None:
    if vm.subclasses.present and vm.subclasses.intercept(operator.setitem, (obj, key, value), {}) is not NO_OVERRIDE:
        return  # the index or the value is of a subclass
    if not has_symint(key) or not set_unknown_item(vm, obj, key, value):
        vm.tensors.run(operator.setitem, (obj, tensor_key(vm, obj, key), value), {})


def store_item(vm: Interpreter, obj: object, key: object, value: object) -> None:
    """`obj[key] = value`"""
    vm.work += 1
    if type(obj) is TraceTensor and python_method(vm, obj, "__setitem__") is None:
        _store_tensor_item(vm, obj, key, value)
        return
    if type(obj) is PrologueValue:
        vm.prologue.run(operator.setitem, (obj, key, value), {})
        return
    method = python_method(vm, obj, "__setitem__")
    if method is not None:
        vm.call(method, (obj, key, value), {})
        return
    target = writable(vm, obj)
    if isinstance(obj, _INDEXED):
        key = index(vm, key)
    if type(key) is slice:
        value = vm.effects.mirror(value) if isinstance(value, CONTAINERS) else iterate(vm, value)
        vm.effects.refuse_iterators((value,))
    if isinstance(target, dict) and type(key) in LEAVES and target is not obj and _is_globals(obj):
        raise Break("a global variable is written through globals()")
    vm.native(operator.setitem, target, vm.effects.plain(key), value)


def _is_globals(obj: object) -> bool:
    return isinstance(obj, dict) and "__builtins__" in obj and "__name__" in obj


def delete_item(vm: Interpreter, obj: object, key: object) -> None:
    """`del obj[key]`"""
    method = python_method(vm, obj, "__delitem__")
    if method is not None:
        vm.call(method, (obj, key), {})
        return
    key = index(vm, key) if isinstance(obj, _INDEXED) else vm.effects.plain(key)
    vm.native(operator.delitem, writable(vm, obj), key)


def writable(vm: Interpreter, obj: object) -> Any:
    """The object that a write to `obj` changes: `obj` itself, or its mirror if it is an external container."""
    obj = vm.effects.copies.own(obj)
    if vm.sources.get(id(obj)) is None:
        return obj
    if not isinstance(obj, CONTAINERS):
        raise Break(f"an item of a {type(obj).__name__} is written", "the object was made outside of the function")
    return vm.effects.mirror(obj)


def contains(vm: Interpreter, container: object, item: object) -> bool:
    """`item in container`"""
    method = python_method(vm, container, "__contains__")
    if method is not None:
        return truth(vm, vm.call(method, (container, item), {}))
    if refuses(vm, container, "__contains__"):
        user_raise(TypeError(f"{vm.type_of(container).__name__!r} object is not a container"))
    source = vm.sources.get(id(container))
    if source is not None and isinstance(container, dict) and vm.effects.untouched(container) and not hashes(item):
        return vm.effects.has_key(container, source, item)
    return _is_among(vm, container, item)


def _is_among(vm: Interpreter, container: object, item: object) -> bool:
    """`item in container` for a container without a `__contains__` written in Python."""
    source = vm.sources.get(id(container))
    if source is not None and not isinstance(container, CONTAINERS) and type(container) is not TraceTensor:
        return any(compare(vm, operator.eq, item, other) is True for other in each(vm, container))
    if type(container) is TraceTensor:
        return vm.tensors.run(operator.contains, (container, item), {})
    if PrologueValue in (type(container), type(item)) and any(True for _ in values_in((container, item))):
        return vm.prologue.known(vm.prologue.run(operator.contains, (container, item), {}))
    is_builtin = isinstance(container, CONTAINERS)  # C code looks the item up, even if a subclass overrides `__iter__`
    if not is_builtin and python_method(vm, container, "__iter__") is not None:
        return any(truth(vm, compare(vm, operator.eq, item, other)) for other in each(vm, container))
    return vm.native(operator.contains, *vm.effects.plain_all((container, item)))


def iterate(vm: Interpreter, value: object) -> object:
    """`iter(value)`"""
    if type(value) is TraceTensor and python_method(vm, value, "__iter__") is None:
        return iter(vm.tensors.run(torch.unbind, (value,), {}))
    if type(value) is PrologueValue:
        return iter(vm.prologue.items(value))
    if type(value) is TracedGenerator:
        return value
    refuse_windows((value,))
    value = vm.effects.copies.own(value)
    method = python_method(vm, value, "__iter__")
    if method is not None:
        iterator = vm.call(method, (value,), {})
        if not hasattr(type(iterator), "__next__"):
            user_raise(TypeError(f"iter() returned non-iterator of type {vm.type_of(iterator).__name__!r}"))
        return iterator
    if refuses(vm, value, "__iter__"):
        user_raise(TypeError(f"{vm.type_of(value).__name__!r} object is not iterable"))
    note_order(vm, value)
    source = vm.sources.get(id(value))
    if source is not None and isinstance(value, CONTAINERS):
        return iter(vm.effects.mirror(value))
    if source is not None and isinstance(value, _ITERATORS):
        return value
    if python_method(vm, value, "__getitem__") is not None:
        return SequenceIterator(vm, value)
    if source is not None:
        raise Break(
            f"a {type(value).__name__} is iterated", "it was made outside of the function, and C code iterates it"
        )
    return user(iter, value)


def ask_length(vm: Interpreter, value: object) -> None:
    """Call `__len__` or `__length_hint__` of an iterable, as C code does to preallocate a list or tuple."""
    if type(value) is TraceTensor:
        return
    if all(find_in_class(vm, type(value), name) is MISS for name in ("__iter__", "__getitem__")):
        return  # it is not iterable, which C code reports first
    method = python_method(vm, value, "__len__") or python_method(vm, value, "__length_hint__")
    if method is None:
        return
    try:
        vm.call(method, (value,), {})
    except UserError as error:
        if not isinstance(error.error, TypeError):
            raise


def each(vm: Interpreter, value: object) -> Iterator[object]:
    """The items of a value, in the order of iteration."""
    iterator = iterate(vm, value)
    while (item := advance(vm, iterator)) is not END:
        yield item


class SequenceIterator:
    """The iterator of an object that has `__getitem__` but no `__iter__`."""

    def __init__(self, vm: Interpreter, value: object) -> None:
        self.vm, self.value, self.index = vm, value, 0

    def __iter__(self) -> SequenceIterator:
        return self

    def __next__(self) -> object:
        try:
            item = self.vm.reenter(lambda: subscript(self.vm, self.value, self.index))
        except IndexError:
            raise StopIteration from None
        self.index += 1
        return item


END = object()


def advance(vm: Interpreter, iterator: object) -> object:
    """`next(iterator)`; END if the iterator is exhausted."""
    try:
        return advance_or_raise(vm, iterator, END)
    except UserError as error:
        if isinstance(error.error, StopIteration):
            return END
        raise


def advance_or_raise(vm: Interpreter, iterator: object, *default: object) -> object:
    """`next(iterator)`, with the StopIteration that carries a generator's result, unless there is a default.

    A `__next__` written in Python raises StopIteration itself.
    """
    kind = type(iterator)
    method = None if kind is TracedGenerator else python_method(vm, iterator, "__next__")
    if method is None or kind is SequenceIterator:
        if id(iterator) in vm.sources:
            vm.effects.refuse_iterators((iterator,))
        if kind is not _LIST_ITERATOR and kind is not _TUPLE_ITERATOR and kind is not _RANGE_ITERATOR:
            vm.work += 1
            try:
                return vm.tensors.c_callbacks.run(next, (iterator, *default), {})
            except Exception as error:
                raise UserError(error) from None
            except BaseException as error:
                if is_programs(error):
                    raise UserError(error) from None
                raise
        return user(next, iterator, *default)
    return vm.call(method, (iterator,), {})


_LIST_ITERATOR: type = type(iter([]))
_TUPLE_ITERATOR: type = type(iter(()))
_RANGE_ITERATOR: type = type(iter(range(0)))
