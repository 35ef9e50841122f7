"""Handlers of the opcodes for operators, items, attributes, and for building and unpacking containers and strings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture.calls.texts import joined
from smelt.capture.core.breaks import user, user_raise
from smelt.capture.core.conditional_value import PhiValue
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter, Kwargs
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.unbacked_text import UnknownText
from smelt.capture.core.values import is_equal_to_itself
from smelt.capture.python import containers
from smelt.capture.python.attribute_reads import python_method
from smelt.capture.python.attribute_writes import delete_attr, store_attr
from smelt.capture.python.operators import binary, compare
from smelt.capture.python.operators import unary as apply_unary
from smelt.capture.python.readers import set_items
from smelt.capture.python.stack_opcodes import count_iteration, name, opcode, take
from smelt.graph.ir.symint import has_symint, pinned
from smelt.graph.meta_rules.constant_values import known_value
from smelt.graph.trace.trace import TraceTensor

# -- operators ----------------------------------------------------------------

OPERATORS = (
    (operator.add, "+"), (operator.and_, "&"), (operator.floordiv, "//"), (operator.lshift, "<<"),
    (operator.matmul, "@"), (operator.mul, "*"), (operator.mod, "%"), (operator.or_, "|"), (operator.pow, "**"),
    (operator.rshift, ">>"), (operator.sub, "-"), (operator.truediv, "/"), (operator.xor, "^"),
    (operator.iadd, "+="), (operator.iand, "&="), (operator.ifloordiv, "//="), (operator.ilshift, "<<="),
    (operator.imatmul, "@="), (operator.imul, "*="), (operator.imod, "%="), (operator.ior, "|="),
    (operator.ipow, "**="), (operator.irshift, ">>="), (operator.isub, "-="), (operator.itruediv, "/="),
    (operator.ixor, "^="),
)  # fmt: skip
"""(function, symbol) of each binary operator, at the index that is the argument of BINARY_OP."""


@opcode("BINARY_OP", decode=lambda site: OPERATORS[site.arg][0])
def binary_op(vm: Interpreter, f: Frame, arg: Callable[..., object]) -> None:
    right = f.stack.pop()
    f.stack[-1] = binary(vm, arg, f.stack[-1], right)


@opcode("UNARY_NOT")
def unary_not(vm: Interpreter, f: Frame, arg: object) -> None:
    value = f.stack[-1]
    if type(value) is PhiValue and value.function is not None:
        f.stack[-1] = PhiValue(value.condition, value.false, value.true, None, value.born, value.function)
        return
    f.stack[-1] = (
        vm.prologue.run(operator.not_, (value,), {})
        if type(value) is PrologueValue
        else not containers.truth(vm, value)
    )


@opcode("UNARY_NEGATIVE", decode=lambda site: operator.neg)
@opcode("UNARY_POSITIVE", decode=lambda site: operator.pos)
@opcode("UNARY_INVERT", decode=lambda site: operator.invert)
def unary(vm: Interpreter, f: Frame, arg: Callable[..., object]) -> None:
    f.stack[-1] = apply_unary(vm, arg, f.stack[-1])


COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


def compare_op(vm: Interpreter, f: Frame, arg: Callable[..., object]) -> None:
    right = f.stack.pop()
    f.stack[-1] = compare(vm, arg, f.stack[-1], right)


@opcode("IS_OP")
def is_op(vm: Interpreter, f: Frame, arg: int) -> None:
    right = f.stack.pop()
    f.stack[-1] = vm.compared.are_one(f.stack[-1], right) != bool(arg)


@opcode("CONTAINS_OP")
def contains_op(vm: Interpreter, f: Frame, arg: int) -> None:
    container = f.stack.pop()
    f.stack[-1] = bool(containers.contains(vm, container, f.stack[-1])) != bool(arg)


@opcode("BINARY_SUBSCR")
def binary_subscr(vm: Interpreter, f: Frame, arg: object) -> None:
    key = f.stack.pop()
    f.stack[-1] = containers.subscript(vm, f.stack[-1], key)


@opcode("STORE_SUBSCR")
def store_subscr(vm: Interpreter, f: Frame, arg: object) -> None:
    key, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop()
    containers.store_item(vm, obj, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(vm: Interpreter, f: Frame, arg: object) -> None:
    key, obj = f.stack.pop(), f.stack.pop()
    containers.delete_item(vm, obj, key)


@opcode("BINARY_SLICE")
def binary_slice(vm: Interpreter, f: Frame, arg: object) -> None:
    stop, start = f.stack.pop(), f.stack.pop()
    f.stack[-1] = containers.subscript(vm, f.stack[-1], slice(start, stop))


@opcode("STORE_SLICE")
def store_slice(vm: Interpreter, f: Frame, arg: object) -> None:
    stop, start, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop(), f.stack.pop()
    containers.store_item(vm, obj, slice(start, stop), value)


# -- attributes ---------------------------------------------


@opcode("STORE_ATTR", decode=name)
def store_attribute(vm: Interpreter, f: Frame, arg: str) -> None:
    obj, value = f.stack.pop(), f.stack.pop()
    store_attr(vm, obj, arg, value)


@opcode("DELETE_ATTR", decode=name)
def delete_attribute(vm: Interpreter, f: Frame, arg: str) -> None:
    delete_attr(vm, f.stack.pop(), arg)


# -- building ----------------------------------------------------------------


@opcode("BUILD_TUPLE")
def build_tuple(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(tuple(take(f, arg)))


@opcode("BUILD_LIST")
def build_list(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(take(f, arg))


@opcode("BUILD_SET")
def build_set(vm: Interpreter, f: Frame, arg: int) -> None:
    items = tuple(take(f, arg))
    f.stack.append(_hashing(vm, items)(set, items))


def _hashing(vm: Interpreter, keys: Sequence[object]) -> Callable[..., object]:
    """A function that runs C code which hashes and compares these keys; `__hash__` and `__eq__` of the program are
    interpreted."""
    return user if all(map(is_equal_to_itself, keys)) else vm.native


@opcode("BUILD_MAP")
def build_map(vm: Interpreter, f: Frame, arg: int) -> None:
    items = take(f, 2 * arg)
    keys = [pinned(key) if has_symint(key) else key for key in items[::2]]
    f.stack.append(_hashing(vm, keys)(dict, zip(keys, items[1::2], strict=True)))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(vm: Interpreter, f: Frame, arg: int) -> None:
    keys = f.stack.pop()
    f.stack.append(dict(zip(keys, take(f, arg), strict=True)))


@opcode("BUILD_SLICE")
def build_slice(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(slice(*take(f, arg)))


@opcode("BUILD_STRING")
def build_string(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(joined(vm, take(f, arg)))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(vm: Interpreter, f: Frame, arg: object) -> None:
    """Replace the list on the stack by a tuple. The list is read through the interpreter, because it may be external
    (in a resumed frame) and have deferred appends.
    """
    f.stack[-1] = tuple(drain(vm, f.stack[-1]))


@opcode("LIST_APPEND")
def list_append(vm: Interpreter, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    vm.effects.append(f.stack[-arg], value)


@opcode("SET_ADD")
def set_add(vm: Interpreter, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    vm.work += 1
    _hashing(vm, (value,))(containers.writable(vm, f.stack[-arg]).add, value)


@opcode("MAP_ADD")
def map_add(vm: Interpreter, f: Frame, arg: int) -> None:
    value, key = f.stack.pop(), f.stack.pop()
    vm.work += 1
    _hashing(vm, (key,))(containers.writable(vm, f.stack[-arg]).__setitem__, key, value)


@opcode("LIST_EXTEND")
def list_extend(vm: Interpreter, f: Frame, arg: int) -> None:
    more = f.stack.pop()
    containers.writable(vm, f.stack[-arg]).extend(drain(vm, more, calls_len=True))


@opcode("SET_UPDATE")
def set_update(vm: Interpreter, f: Frame, arg: int) -> None:
    more = f.stack.pop()
    taken = isinstance(more, (set, frozenset))  # CPython reads a set directly, without calling methods of its subclass
    items = tuple(set_items(vm.effects.mirror(more)) if taken else drain(vm, more))
    _hashing(vm, items)(containers.writable(vm, f.stack[-arg]).update, items)


def drain(vm: Interpreter, value: Any, calls_len: bool = False) -> list[Any]:
    """All items of an iterable.

    Args:
        calls_len: whether to call `__len__` first, as C code does that makes a list or tuple.
    """
    if (type(value) is list or type(value) is tuple) and id(value) not in vm.sources:
        return list(value)
    vm.work += 1
    iterator, items = containers.iterate(vm, value), []
    if calls_len:
        containers.ask_length(vm, value)
    while (item := containers.advance(vm, iterator)) is not containers.END:
        count_iteration(vm)
        items.append(item)
    return items


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(vm: Interpreter, f: Frame, arg: int) -> None:
    more = f.stack.pop()
    vm.work += 1
    items = mapping(vm, more)
    _hashing(vm, list(items))(containers.writable(vm, f.stack[-arg]).update, items)


def mapping(vm: Interpreter, value: object) -> dict[Any, Any]:
    """A plain dict with the items of a mapping."""
    if type(value) is dict and id(value) not in vm.sources:
        return value
    if isinstance(value, dict) and python_method(vm, value, "keys") is None:
        return dict(vm.effects.mirror(value))
    keys = drain(vm, vm.call(vm.load_attr(value, "keys"), (), {}))
    return {key: containers.subscript(vm, value, key) for key in keys}


def keywords(vm: Interpreter, value: object) -> Kwargs:
    """The keyword arguments of a call, from the operand of `**`."""
    by_name = dict(mapping(vm, value))
    if not all(isinstance(key, str) for key in by_name):
        user_raise(TypeError("keywords must be strings"))
    return by_name


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(vm: Interpreter, f: Frame, arg: int) -> None:
    items = drain(vm, f.stack[-1])
    if len(items) != arg:
        few = len(items) < arg
        tail = f"not enough values to unpack (expected {arg}, got {len(items)})" if few else "too many values to unpack"
        user_raise(ValueError(tail))
    f.stack.pop()
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(vm: Interpreter, f: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = drain(vm, f.stack.pop())
    if len(items) < before + after:
        user_raise(ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})"))
    end = len(items) - after
    f.stack.extend(reversed([*items[:before], items[before:end], *items[end:]]))


def _text(known: object, convert: int, spec: str) -> str:
    """The text of a known value, formatted by `spec` after conversion by `convert` (0 none, 1 str, 2 repr, 3 ascii)."""
    return format((str, str, repr, ascii)[convert](known) if convert else known, spec)


def format_with(vm: Interpreter, f: Frame, convert: int, spec: str) -> None:
    """Replace the top of the stack by its text; `convert` is 0 none, 1 str, 2 repr, 3 ascii."""
    value = f.stack[-1]
    if type(value) is TraceTensor or type(value) is UnknownText:
        known = known_value(value) if isinstance(value, TraceTensor) else None
        f.stack[-1] = UnknownText.of(vm) if known is None else _text(known, convert, spec)
        return
    if convert:
        value = vm.call((str, repr, ascii)[convert - 1], (value,), {})
    f.stack[-1] = value if type(value) is str and not spec else vm.call(format, (value, spec), {})


@opcode("FORMAT_VALUE")
def format_value(vm: Interpreter, f: Frame, arg: int) -> None:
    spec = f.stack.pop() if arg & 4 else ""
    format_with(vm, f, arg & 3, spec)
