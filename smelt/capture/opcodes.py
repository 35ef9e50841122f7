"""The meaning of opcodes: what every supported CPython version shares. A version's table says which names it has.

A handler gets (vm, frame, decoded argument); it returns None, or RETURN or YIELD when the frame stops.
"""

from __future__ import annotations

import importlib
import operator
import types
from collections.abc import Callable
from typing import Any

from smelt.capture import containers
from smelt.capture._native import NULL
from smelt.capture.attributes import delete_attr, python_method, store_attr
from smelt.capture.breaks import Break, UserError, user, user_raise
from smelt.capture.bytecode import Jump, Op, Site
from smelt.capture.effects import DELETED
from smelt.capture.frames import RETURN, YIELD, Frame, Unread, slot_names
from smelt.capture.generators import TracedGenerator
from smelt.capture.operators import binary, compare
from smelt.capture.operators import unary as apply_unary
from smelt.graph.trace import TraceTensor

COMMON: dict[str, Op] = {}


def raw(site: Site) -> int:
    """The argument as it is."""
    return site.arg


def name(site: Site) -> str:
    """A name of co_names."""
    return site.code.co_names[site.arg]


def const(site: Site) -> Any:
    """A constant of co_consts."""
    return site.code.co_consts[site.arg]


def forward(site: Site) -> Jump:
    """A jump target after this instruction."""
    return Jump(site.next + 2 * site.arg)


def backward(site: Site) -> Jump:
    """A jump target before this instruction."""
    return Jump(site.next - 2 * site.arg)


def opcode(*names: str, decode: Callable[[Site], Any] = raw) -> Callable[[Any], Any]:
    """Decorator: the handler of these opcodes in every version."""

    def register(fn: Any) -> Any:
        for each in names:
            COMMON[each] = Op(fn, decode)
        return fn

    return register


@opcode("unknown")
def unknown(vm: Any, f: Frame, arg: Any) -> None:
    raise Break(f"the bytecode instruction {arg}", "capture does not interpret it")


# -- stack ----------------------------------------------------------------


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "SETUP_ANNOTATIONS")
def nop(vm: Any, f: Frame, arg: Any) -> None:
    pass


@opcode("POP_TOP", "END_FOR")
def pop_top(vm: Any, f: Frame, arg: Any) -> None:
    f.stack.pop()


@opcode("PUSH_NULL")
def push_null(vm: Any, f: Frame, arg: Any) -> None:
    f.stack.append(NULL)


@opcode("COPY")
def copy(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(f.stack[-arg])


@opcode("SWAP")
def swap(vm: Any, f: Frame, arg: int) -> None:
    s = f.stack
    s[-1], s[-arg] = s[-arg], s[-1]


@opcode("LOAD_CONST", decode=const)
def load_const(vm: Any, f: Frame, arg: Any) -> None:
    f.stack.append(arg)


# -- variables ----------------------------------------------------------------


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(vm: Any, f: Frame, arg: int) -> None:
    value = f.locals[arg]
    if value is NULL:
        user_raise(UnboundLocalError(f"cannot access local variable {slot_names(f.code)[arg]!r}"))
    if type(value) is Unread:
        value = read_variable(vm, f, arg)
    f.stack.append(value)


def read_variable(vm: Any, f: Frame, slot: int) -> Any:
    """The value of a variable, with its guards from now on."""
    held = f.locals[slot]
    if type(held) is Unread:
        held = f.locals[slot] = vm.external(held.value, held.source)
    return held


@opcode("LOAD_CLOSURE")
def load_closure(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(f.locals[arg])


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(read_variable(vm, f, arg))
    f.locals[arg] = NULL


@opcode("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def store_fast(vm: Any, f: Frame, arg: int) -> None:
    f.locals[arg] = f.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(vm: Any, f: Frame, arg: int) -> None:
    if f.locals[arg] is NULL:
        user_raise(UnboundLocalError(f"cannot access local variable {slot_names(f.code)[arg]!r}"))
    f.locals[arg] = NULL


@opcode("MAKE_CELL")
def make_cell(vm: Any, f: Frame, arg: int) -> None:
    held = read_variable(vm, f, arg)
    cell = types.CellType() if held is NULL else types.CellType(held)
    vm.created.add(id(cell))
    vm.keep(cell)
    f.locals[arg] = cell


@opcode("COPY_FREE_VARS")
def copy_free_vars(vm: Any, f: Frame, arg: int) -> None:
    f.locals[len(f.locals) - arg :] = f.closure


@opcode("LOAD_DEREF")
def load_deref(vm: Any, f: Frame, arg: int) -> None:
    key = slot_names(f.code)[arg]
    value = vm.cell(f.locals[arg], key)
    if value is NULL:
        user_raise(NameError(f"cannot access free variable {key!r}"))
    f.stack.append(value)


@opcode("STORE_DEREF")
def store_deref(vm: Any, f: Frame, arg: int) -> None:
    write_cell(vm, f.locals[arg], f.stack.pop())


@opcode("DELETE_DEREF")
def delete_deref(vm: Any, f: Frame, arg: int) -> None:
    write_cell(vm, f.locals[arg], DELETED)


def write_cell(vm: Any, cell: types.CellType, value: Any) -> None:
    """Set (or empty) a cell; one from outside is written by residual code."""
    if id(cell) in vm.sources:
        vm.effects.store("cell", cell, "cell_contents", value)
    elif value is DELETED:
        vm.work += 1
        del cell.cell_contents
    else:
        vm.work += 1
        cell.cell_contents = value


@opcode("STORE_GLOBAL", decode=name)
def store_global(vm: Any, f: Frame, arg: str) -> None:
    vm.globals_source(f.globals)
    vm.effects.store("global", f.globals, arg, f.stack.pop())


@opcode("DELETE_GLOBAL", decode=name)
def delete_global(vm: Any, f: Frame, arg: str) -> None:
    raise Break("a global variable is deleted")


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(vm: Any, f: Frame, arg: Any) -> None:
    f.stack.append(AssertionError)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(vm: Any, f: Frame, arg: Any) -> None:
    raise Break("a class is defined", "class bodies are not captured", "define it outside of the function")


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
"""By the argument of BINARY_OP."""


@opcode("BINARY_OP", decode=lambda site: OPERATORS[site.arg][0])
def binary_op(vm: Any, f: Frame, arg: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = binary(vm, arg, f.stack[-1], right)


@opcode("UNARY_NOT")
def unary_not(vm: Any, f: Frame, arg: Any) -> None:
    f.stack[-1] = not containers.truth(vm, f.stack[-1])


@opcode("UNARY_NEGATIVE", decode=lambda site: operator.neg)
@opcode("UNARY_POSITIVE", decode=lambda site: operator.pos)
@opcode("UNARY_INVERT", decode=lambda site: operator.invert)
def unary(vm: Any, f: Frame, arg: Any) -> None:
    f.stack[-1] = apply_unary(vm, arg, f.stack[-1])


COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


def compare_op(vm: Any, f: Frame, arg: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = compare(vm, arg, f.stack[-1], right)


@opcode("IS_OP")
def is_op(vm: Any, f: Frame, arg: int) -> None:
    right = f.stack.pop()
    left = f.stack[-1]
    same = left is right
    if not same:
        a, b = vm.sources.get(id(left)), vm.sources.get(id(right))
        if a is not None and b is not None and a.local and b.local:
            vm.guards.different(a, b)
    f.stack[-1] = same != bool(arg)


@opcode("CONTAINS_OP")
def contains_op(vm: Any, f: Frame, arg: int) -> None:
    container = f.stack.pop()
    f.stack[-1] = bool(containers.contains(vm, container, f.stack[-1])) != bool(arg)


@opcode("BINARY_SUBSCR")
def binary_subscr(vm: Any, f: Frame, arg: Any) -> None:
    key = f.stack.pop()
    f.stack[-1] = containers.subscript(vm, f.stack[-1], key)


@opcode("STORE_SUBSCR")
def store_subscr(vm: Any, f: Frame, arg: Any) -> None:
    key, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop()
    containers.store_item(vm, obj, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(vm: Any, f: Frame, arg: Any) -> None:
    key, obj = f.stack.pop(), f.stack.pop()
    containers.delete_item(vm, obj, key)


@opcode("BINARY_SLICE")
def binary_slice(vm: Any, f: Frame, arg: Any) -> None:
    stop, start = f.stack.pop(), f.stack.pop()
    f.stack[-1] = containers.subscript(vm, f.stack[-1], slice(start, stop))


@opcode("STORE_SLICE")
def store_slice(vm: Any, f: Frame, arg: Any) -> None:
    stop, start, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop(), f.stack.pop()
    containers.store_item(vm, obj, slice(start, stop), value)


# -- attributes ---------------------------------------------


@opcode("STORE_ATTR", decode=name)
def store_attribute(vm: Any, f: Frame, arg: str) -> None:
    obj, value = f.stack.pop(), f.stack.pop()
    store_attr(vm, obj, arg, value)


@opcode("DELETE_ATTR", decode=name)
def delete_attribute(vm: Any, f: Frame, arg: str) -> None:
    delete_attr(vm, f.stack.pop(), arg)


# -- building ----------------------------------------------------------------


def take(f: Frame, count: int) -> list[Any]:
    """Pop the topmost `count` elements, in their order."""
    if not count:
        return []
    items = f.stack[-count:]
    del f.stack[-count:]
    return items


@opcode("BUILD_TUPLE")
def build_tuple(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(tuple(take(f, arg)))


@opcode("BUILD_LIST")
def build_list(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(take(f, arg))


@opcode("BUILD_SET")
def build_set(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(user(set, take(f, arg)))


@opcode("BUILD_MAP")
def build_map(vm: Any, f: Frame, arg: int) -> None:
    items = take(f, 2 * arg)
    f.stack.append(user(dict, zip(items[::2], items[1::2], strict=True)))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(vm: Any, f: Frame, arg: int) -> None:
    keys = f.stack.pop()
    f.stack.append(dict(zip(keys, take(f, arg), strict=True)))


@opcode("BUILD_SLICE")
def build_slice(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append(slice(*take(f, arg)))


@opcode("BUILD_STRING")
def build_string(vm: Any, f: Frame, arg: int) -> None:
    f.stack.append("".join(take(f, arg)))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(vm: Any, f: Frame, arg: Any) -> None:
    f.stack[-1] = tuple(f.stack[-1])


@opcode("LIST_APPEND")
def list_append(vm: Any, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    vm.effects.append(f.stack[-arg], value)


@opcode("SET_ADD")
def set_add(vm: Any, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    vm.work += 1
    user(containers.writable(vm, f.stack[-arg]).add, value)


@opcode("MAP_ADD")
def map_add(vm: Any, f: Frame, arg: int) -> None:
    value, key = f.stack.pop(), f.stack.pop()
    vm.work += 1
    user(containers.writable(vm, f.stack[-arg]).__setitem__, key, value)


@opcode("LIST_EXTEND")
def list_extend(vm: Any, f: Frame, arg: int) -> None:
    more = f.stack.pop()
    containers.writable(vm, f.stack[-arg]).extend(drain(vm, more))


@opcode("SET_UPDATE")
def set_update(vm: Any, f: Frame, arg: int) -> None:
    more = f.stack.pop()
    user(containers.writable(vm, f.stack[-arg]).update, drain(vm, more))


def drain(vm: Any, value: Any) -> list[Any]:
    """All items of an iterable."""
    if type(value) in (list, tuple) and id(value) not in vm.sources:
        return list(value)
    vm.work += 1
    iterator, items = containers.iterate(vm, value), []
    while (item := containers.advance(vm, iterator)) is not containers.END:
        items.append(item)
    return items


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(vm: Any, f: Frame, arg: int) -> None:
    more = f.stack.pop()
    vm.work += 1
    user(containers.writable(vm, f.stack[-arg]).update, mapping(vm, more))


def mapping(vm: Any, value: Any) -> dict[Any, Any]:
    """A mapping as a plain dict."""
    if type(value) is dict and id(value) not in vm.sources:
        return value
    if isinstance(value, dict) and python_method(vm, value, "keys") is None:
        return dict(vm.effects.mirror(value))
    keys = drain(vm, vm.call(vm.load_attr(value, "keys"), (), {}))
    return {key: containers.subscript(vm, value, key) for key in keys}


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(vm: Any, f: Frame, arg: int) -> None:
    items = drain(vm, f.stack[-1])
    if len(items) != arg:
        few = len(items) < arg
        tail = f"not enough values to unpack (expected {arg}, got {len(items)})" if few else "too many values to unpack"
        user_raise(ValueError(tail))
    f.stack.pop()
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(vm: Any, f: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = drain(vm, f.stack.pop())
    if len(items) < before + after:
        user_raise(ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})"))
    end = len(items) - after
    f.stack.extend(reversed([*items[:before], items[before:end], *items[end:]]))


def format_with(vm: Any, f: Frame, convert: int, spec: str) -> None:
    """Replace the top by its text; `convert`: 0 none, 1 str, 2 repr, 3 ascii."""
    value = f.stack[-1]
    if type(value) is TraceTensor:
        raise containers.tensor_value("a tensor is turned into text")
    if convert:
        value = vm.call((str, repr, ascii)[convert - 1], (value,), {})
    f.stack[-1] = value if type(value) is str and not spec else vm.call(format, (value, spec), {})


@opcode("FORMAT_VALUE")
def format_value(vm: Any, f: Frame, arg: int) -> None:
    spec = f.stack.pop() if arg & 4 else ""
    format_with(vm, f, arg & 3, spec)


# -- jumps ----------------------------------------------------------------


@opcode("JUMP_FORWARD", decode=forward)
@opcode("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", decode=backward)
def jump(vm: Any, f: Frame, arg: int) -> None:
    f.pc = arg


@opcode("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", decode=forward)
@opcode("POP_JUMP_BACKWARD_IF_FALSE", decode=backward)
def pop_jump_if_false(vm: Any, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    if value is False or value is not True and not containers.truth(vm, value):
        f.pc = arg


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", decode=forward)
@opcode("POP_JUMP_BACKWARD_IF_TRUE", decode=backward)
def pop_jump_if_true(vm: Any, f: Frame, arg: int) -> None:
    value = f.stack.pop()
    if value is True or value is not False and containers.truth(vm, value):
        f.pc = arg


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", decode=forward)
@opcode("POP_JUMP_BACKWARD_IF_NONE", decode=backward)
def pop_jump_if_none(vm: Any, f: Frame, arg: int) -> None:
    if f.stack.pop() is None:
        f.pc = arg


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", decode=forward)
@opcode("POP_JUMP_BACKWARD_IF_NOT_NONE", decode=backward)
def pop_jump_if_not_none(vm: Any, f: Frame, arg: int) -> None:
    if f.stack.pop() is not None:
        f.pc = arg


@opcode("JUMP_IF_FALSE_OR_POP", decode=forward)
def jump_if_false_or_pop(vm: Any, f: Frame, arg: int) -> None:
    if containers.truth(vm, f.stack[-1]):
        f.stack.pop()
    else:
        f.pc = arg


@opcode("JUMP_IF_TRUE_OR_POP", decode=forward)
def jump_if_true_or_pop(vm: Any, f: Frame, arg: int) -> None:
    if containers.truth(vm, f.stack[-1]):
        f.pc = arg
    else:
        f.stack.pop()


@opcode("GET_ITER")
def get_iter(vm: Any, f: Frame, arg: Any) -> None:
    f.stack[-1] = containers.iterate(vm, f.stack[-1])


def for_iter(vm: Any, f: Frame, arg: int) -> None:
    """The version's table says where an exhausted loop goes on."""
    value = containers.advance(vm, f.stack[-1])
    if value is containers.END:
        f.stack.pop()
        f.pc = arg
    else:
        f.stack.append(value)


# -- calls ----------------------------------------------------------------


@opcode("KW_NAMES", decode=const)
def kw_names(vm: Any, f: Frame, arg: tuple[str, ...]) -> None:
    f.kw_names = arg


def make_call(vm: Any, f: Frame, fn: Any, first: Any, items: list[Any], names: tuple[str, ...]) -> None:
    """Call with `first` (unless NULL) before `items`, the last of which are named."""
    if names:
        split = len(items) - len(names)
        kwargs = dict(zip(names, items[split:], strict=True))
        items = items[:split]
    else:
        kwargs = {}
    args = tuple(items) if first is NULL else (first, *items)
    f.stack.append(vm.call(fn, args, kwargs))


@opcode("RETURN_VALUE")
def return_value(vm: Any, f: Frame, arg: Any) -> Any:
    f.value = f.stack.pop()
    return RETURN


@opcode("RETURN_CONST", decode=const)
def return_const(vm: Any, f: Frame, arg: Any) -> Any:
    f.value = arg
    return RETURN


@opcode("RETURN_GENERATOR")
def return_generator(vm: Any, f: Frame, arg: Any) -> Any:
    return RETURN


@opcode("YIELD_VALUE")
def yield_value(vm: Any, f: Frame, arg: Any) -> Any:
    f.value = f.stack.pop()
    return YIELD


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(vm: Any, f: Frame, arg: Any) -> None:
    if type(f.stack[-1]) is not TracedGenerator:
        f.stack[-1] = containers.iterate(vm, f.stack[-1])


def send_value(vm: Any, f: Frame) -> tuple[bool, Any]:
    """One step of `yield from`: (True, yielded) or (False, returned). Pops the sent value."""
    value, receiver = f.stack.pop(), f.stack[-1]
    try:
        if value is None:
            out = containers.advance(vm, receiver) if type(receiver) is not TracedGenerator else receiver.send(None)
            return (False, None) if out is containers.END else (True, out)
        return True, vm.call(vm.load_attr(receiver, "send"), (value,), {})
    except StopIteration as stop:
        return False, stop.value
    except UserError as error:
        if isinstance(error.error, StopIteration):
            return False, error.error.value
        raise
    except Exception as error:
        raise UserError(error) from None


def set_function(fn: types.FunctionType, flag: int, value: Any) -> None:
    """MAKE_FUNCTION's and SET_FUNCTION_ATTRIBUTE's parts of a function, except the closure."""
    if flag == 1:
        fn.__defaults__ = value
    elif flag == 2:
        fn.__kwdefaults__ = value
    elif flag == 4:
        pairs = value if isinstance(value, dict) else dict(zip(value[::2], value[1::2], strict=True))
        fn.__annotations__ = pairs


def new_function(vm: Any, f: Frame, code: types.CodeType, closure: tuple[Any, ...]) -> types.FunctionType:
    """A function made by the program."""
    blank = closure or tuple(types.CellType() for _ in code.co_freevars)
    fn = types.FunctionType(code, f.globals, code.co_name, None, blank)
    fn.__qualname__ = code.co_qualname
    if f.globals.get("__name__") is not None:
        fn.__module__ = f.globals["__name__"]
    vm.globals_source(f.globals)
    vm.created.add(id(fn))
    vm.keep(fn)
    return fn


# -- imports ----------------------------------------------------------------


@opcode("IMPORT_NAME", decode=name)
def import_name(vm: Any, f: Frame, arg: str) -> None:
    names, level = f.stack.pop(), f.stack.pop()
    f.stack.append(vm.native(__import__, arg, f.globals, None, names, level))


@opcode("IMPORT_FROM", decode=name)
def import_from(vm: Any, f: Frame, arg: str) -> None:
    try:
        f.stack.append(vm.load_attr(f.stack[-1], arg))
    except UserError:
        f.stack.append(vm.native(_import_from, f.stack[-1], arg))


def _import_from(module: types.ModuleType, attribute: str) -> Any:
    return importlib.import_module(f"{module.__name__}.{attribute}")
