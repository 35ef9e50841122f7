"""Handlers of the opcodes for stack, variables and jumps that all supported CPython versions share.

A handler gets (vm, frame, decoded argument); it returns None, or RETURN or YIELD if the frame stops. The table of a
version (`opcodes.py311` ...) extends the common handlers; `opcodes.data`, `opcodes.calls` and `opcodes.exceptions`
define others.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any, TypeVar

from smelt.capture import _native as native
from smelt.capture._native import NULL
from smelt.capture.core.breaks import Break, user_raise
from smelt.capture.core.bytecode import Handler, Jump, Op, Site
from smelt.capture.core.conditional_value import PhiValue
from smelt.capture.core.frames import Frame, Unread, slot_names
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.sources import sequence_item
from smelt.capture.python import containers
from smelt.capture.python.effects import DELETED

H = TypeVar("H", bound=Handler)

COMMON: dict[str, Op] = {}


def raw(site: Site) -> int:
    """The raw argument."""
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


def opcode(*names: str, decode: Callable[[Site], object] = raw) -> Callable[[H], H]:
    """Decorator: register the handler of these opcodes for every version."""

    def register(fn: H) -> H:
        for each in names:
            COMMON[each] = Op(fn, decode)
        return fn

    return register


MAX_ARM_ITERATIONS = 10_000
"""Maximum number of loop iterations in one arm of a branch on a tensor's value."""


def count_iteration(vm: Interpreter) -> None:
    """Count a loop iteration. Both arms of a branch are captured, and the one that is not taken may loop endlessly.

    Raises:
        Break: one arm has more than `MAX_ARM_ITERATIONS` iterations.
    """
    if vm.control.branching:
        vm.control.arm_iterations += 1
        if vm.control.arm_iterations > MAX_ARM_ITERATIONS:
            raise Break("a long loop in one arm of a branch", f"it has more than {MAX_ARM_ITERATIONS} iterations")


def counting_iterations(handler: Handler) -> Handler:
    """Decorator of a handler: count an iteration if the instruction jumps backward."""

    def turn(vm: Interpreter, f: Frame, arg: object) -> object:
        count_iteration(vm)
        return handler(vm, f, arg)

    return turn


def take(f: Frame, count: int) -> list[Any]:
    """Pop the topmost `count` elements, in their order."""
    if not count:
        return []
    items = f.stack[-count:]
    del f.stack[-count:]
    return items


@opcode("unknown")
def unknown(vm: Interpreter, f: Frame, arg: object) -> None:
    raise Break(f"the bytecode instruction {arg}", "capture does not interpret it")


# -- stack ----------------------------------------------------------------


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "SETUP_ANNOTATIONS")
def nop(vm: Interpreter, f: Frame, arg: object) -> None:
    pass


@opcode("POP_TOP", "END_FOR")
def pop_top(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.pop()


@opcode("PUSH_NULL")
def push_null(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(NULL)


@opcode("COPY")
def copy(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(f.stack[-arg])


@opcode("SWAP")
def swap(vm: Interpreter, f: Frame, arg: int) -> None:
    s = f.stack
    s[-1], s[-arg] = s[-arg], s[-1]


@opcode("LOAD_CONST", decode=const)
def load_const(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(own_constant(vm, arg) if type(arg) is tuple else arg)


def own_constant(vm: Interpreter, value: tuple[object, ...]) -> tuple[object, ...]:
    """The tuple to use for a constant of the code. Python merges equal constants of a file, so an external value may be
    the same object."""
    vm.python.constants.add(id(value))
    items = [own_constant(vm, item) if type(item) is tuple else item for item in value]
    known = id(value) in vm.sources or any(a is not b for a, b in zip(items, value, strict=True))
    return tuple(items) if known else value


# -- variables ----------------------------------------------------------------


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(vm: Interpreter, f: Frame, arg: int) -> None:
    value = f.locals[arg]
    if type(value) is Unread:
        value = read_variable(vm, f, arg)
    if value is NULL:
        user_raise(unbound_slot(f.code, arg))
    f.stack.append(value)


def unbound_slot(code: types.CodeType, slot: int) -> NameError:
    """The error for a variable without a value."""
    name = slot_names(code)[slot]
    if slot < code.co_nlocals or name in code.co_cellvars:
        return UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value")
    where = "where it is not associated with a value in enclosing scope"
    return NameError(f"cannot access free variable {name!r} {where}")


def read_variable(vm: Interpreter, f: Frame, slot: int) -> Any:
    """The value of a variable; the first read adds its guards."""
    variable = f.locals[slot]
    if type(variable) is Unread:
        variable = f.locals[slot] = vm.external(variable.value, variable.source)
    if type(variable) is PhiValue:
        variable.read()
    return variable


_STORES = ("STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST")


def store_unread(vm: Interpreter, f: Frame) -> None:
    """Run the stores at which a frame resumes without reading the stored values, then read the rest of its stack.

    The item of a `for` loop is on the stack and is stored to variables. If the item were read, its value would be
    guarded, and a loop with a graph break would need a cache entry for each iteration.
    """
    names, raw = f.decoded.names, f.decoded.raw
    while f.stack and type(f.stack[-1]) is Unread:
        item, wanted = f.stack[-1], names[f.pc]
        if wanted == "UNPACK_SEQUENCE" and type(item.value) is tuple and len(item.value) == raw[f.pc]:
            vm.guards.check(item.source, native.TYPE_IS, tuple)
            vm.guards.check(item.source, native.LEN, len(item.value))
            items = [Unread(v, sequence_item(item.source, i, tuple)) for i, v in enumerate(item.value)]
            f.stack[-1:] = reversed(items)
        elif wanted in _STORES and not any(map(vm.finalizers.refers_to_finalizer, _overwritten(f))):
            handler, arg = f.decoded.instructions[f.pc]
            handler(vm, f, arg)
        else:
            break
        f.pc += 1
    f.stack[:] = [vm.external(value.value, value.source) if type(value) is Unread else value for value in f.stack]


def _overwritten(f: Frame) -> list[object]:
    """The present values of the variables that the next instruction stores to."""
    name, arg = f.decoded.names[f.pc], f.decoded.raw[f.pc]
    slots = {"STORE_FAST": [arg], "STORE_FAST_LOAD_FAST": [arg >> 4]}.get(name, [arg >> 4, arg & 15])
    return [f.locals[slot] for slot in slots]


@opcode("LOAD_CLOSURE")
def load_closure(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(f.locals[arg])


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(read_variable(vm, f, arg))
    f.locals[arg] = NULL


@opcode("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def store_fast(vm: Interpreter, f: Frame, arg: int) -> None:
    f.locals[arg] = f.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(vm: Interpreter, f: Frame, arg: int) -> None:
    variable = f.locals[arg]
    if type(variable) is Unread and variable.value is not NULL:  # a guard that it is bound, to any value
        vm.guards.check(variable.source, native.IS_NOT, NULL)
    elif read_variable(vm, f, arg) is NULL:
        user_raise(unbound_slot(f.code, arg))
    f.locals[arg] = NULL


@opcode("MAKE_CELL")
def make_cell(vm: Interpreter, f: Frame, arg: int) -> None:
    variable = read_variable(vm, f, arg)
    cell = types.CellType() if variable is NULL else types.CellType(variable)
    vm.python.created.add(id(cell))
    vm.keep(cell)
    f.locals[arg] = cell


@opcode("COPY_FREE_VARS")
def copy_free_vars(vm: Interpreter, f: Frame, arg: int) -> None:
    f.locals[len(f.locals) - arg :] = f.closure


@opcode("LOAD_DEREF")
def load_deref(vm: Interpreter, f: Frame, arg: int) -> None:
    f.stack.append(_bound(vm, f, arg))


def _bound(vm: Interpreter, f: Frame, slot: int) -> object:
    """The value of the cell in a slot."""
    key = slot_names(f.code)[slot]
    value = vm.cell(f.locals[slot], key)
    if value is NULL:
        user_raise(unbound_slot(f.code, slot))
    return value


@opcode("STORE_DEREF")
def store_deref(vm: Interpreter, f: Frame, arg: int) -> None:
    write_cell(vm, f.locals[arg], f.stack.pop())


@opcode("DELETE_DEREF")
def delete_deref(vm: Interpreter, f: Frame, arg: int) -> None:
    _bound(vm, f, arg)
    write_cell(vm, f.locals[arg], DELETED)


def write_cell(vm: Interpreter, cell: types.CellType, value: object) -> None:
    """Set (or empty) a cell; writes to external cells are deferred."""
    if id(cell) in vm.sources:
        vm.effects.store("cell", cell, "cell_contents", value)
    elif value is DELETED:
        vm.work += 1
        del cell.cell_contents
    else:
        vm.work += 1
        cell.cell_contents = value


@opcode("STORE_GLOBAL", decode=name)
def store_global(vm: Interpreter, f: Frame, arg: str) -> None:
    vm.effects.store_variable(f.globals, arg, f.stack.pop())


@opcode("DELETE_GLOBAL", decode=name)
def delete_global(vm: Interpreter, f: Frame, arg: str) -> None:
    vm.load_global(f, arg)
    if arg not in f.globals and vm.effects.stores.get(("global", id(f.globals), arg)) is None:
        user_raise(NameError(f"name {arg!r} is not defined", name=arg))  # even if a builtin has this name
    vm.effects.store_variable(f.globals, arg, DELETED)


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(AssertionError)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(builtins.__build_class__)


# -- jumps ----------------------------------------------------------------


@opcode("JUMP_FORWARD", decode=forward)
def jump(vm: Interpreter, f: Frame, arg: int) -> None:
    f.pc = arg


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", decode=forward)
def pop_jump_if_none(vm: Interpreter, f: Frame, arg: int) -> None:
    if f.stack.pop() is None:
        f.pc = arg


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", decode=forward)
def pop_jump_if_not_none(vm: Interpreter, f: Frame, arg: int) -> None:
    if f.stack.pop() is not None:
        f.pc = arg


opcode("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", decode=backward)(counting_iterations(jump))
opcode("POP_JUMP_BACKWARD_IF_NONE", decode=backward)(counting_iterations(pop_jump_if_none))
opcode("POP_JUMP_BACKWARD_IF_NOT_NONE", decode=backward)(counting_iterations(pop_jump_if_not_none))


@opcode("JUMP_IF_FALSE_OR_POP", decode=forward)
def jump_if_false_or_pop(vm: Interpreter, f: Frame, arg: int) -> None:
    if containers.truth(vm, f.stack[-1]):
        f.stack.pop()
    else:
        f.pc = arg


@opcode("JUMP_IF_TRUE_OR_POP", decode=forward)
def jump_if_true_or_pop(vm: Interpreter, f: Frame, arg: int) -> None:
    if containers.truth(vm, f.stack[-1]):
        f.pc = arg
    else:
        f.stack.pop()


@opcode("GET_ITER")
def get_iter(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack[-1] = containers.iterate(vm, f.stack[-1])


def for_iter(vm: Interpreter, f: Frame, arg: int) -> None:
    """Push the next item of the loop's iterator, or jump to `arg`, which the version's table decodes, if it is
    exhausted."""
    value = containers.advance(vm, f.stack[-1])
    if value is containers.END:
        f.stack.pop()
        f.pc = arg
    else:
        f.stack.append(value)
