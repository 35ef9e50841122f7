"""The opcode table of CPython 3.12: decoders and handlers that differ from 3.11."""

from __future__ import annotations

import operator

from smelt.base.class_tables import isinstance
from smelt.capture._native import NULL
from smelt.capture.core.breaks import Break, UserError
from smelt.capture.core.bytecode import Jump, Op, Site
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.opcodes import calls as opcodes_calls
from smelt.capture.opcodes import data as opcodes_data
from smelt.capture.opcodes import py311
from smelt.capture.python import stack_opcodes
from smelt.capture.python.stack_opcodes import forward, name, raw


def attribute_name(site: Site) -> tuple[bool, str]:
    """(whether the instruction loads a method for a call, name)"""
    return bool(site.arg & 1), site.code.co_names[site.arg >> 1]


def load_attr(vm: Interpreter, f: Frame, arg: tuple[bool, str]) -> None:
    method, key = arg
    value = vm.load_attr(f.stack[-1], key)
    if method:
        f.stack[-1] = NULL
        f.stack.append(value)
    else:
        f.stack[-1] = value


def super_name(site: Site) -> tuple[bool, str]:
    """(whether the instruction loads a method for a call, name)"""
    return bool(site.arg & 1), site.code.co_names[site.arg >> 2]


def super_attr(vm: Interpreter, f: Frame) -> tuple[object, object, object]:
    """Pop the three operands of LOAD_SUPER_ATTR."""
    obj, cls, make = f.stack.pop(), f.stack.pop(), f.stack.pop()
    return make, cls, obj


def load_super_attr(vm: Interpreter, f: Frame, arg: tuple[bool, str]) -> None:
    method, key = arg
    make, cls, obj = super_attr(vm, f)
    value = vm.load_attr(vm.call(make, (cls, obj), {}), key)
    if method:
        f.stack.append(NULL)
    f.stack.append(value)


def send(vm: Interpreter, f: Frame, arg: int) -> None:
    more, value = opcodes_calls.send_value(vm, f)
    f.stack.append(value)
    if not more:
        f.pc = arg


def end_send(vm: Interpreter, f: Frame, arg: object) -> None:
    value = f.stack.pop()
    f.stack[-1] = value


def cleanup_throw(vm: Interpreter, f: Frame, arg: object) -> None:
    error = f.stack.pop()
    if not isinstance(error, StopIteration):
        raise UserError(error)
    f.stack[-2:] = [None, error.value]


def intrinsic_1(vm: Interpreter, f: Frame, arg: int) -> None:
    """CALL_INTRINSIC_1, for the intrinsics that occur in functions."""
    value = f.stack[-1]
    match arg:
        case 3:  # INTRINSIC_STOPITERATION_ERROR: of a generator
            inner = isinstance(value, StopIteration)
            f.stack[-1] = RuntimeError("generator raised StopIteration") if inner else value
        case 5:
            f.stack[-1] = opcodes_data.apply_unary(vm, operator.pos, value)
        case 6:
            opcodes_data.list_to_tuple(vm, f, None)
        case _:
            raise Break(f"intrinsic {arg}", "type parameters and async generators are not captured")


def intrinsic_2(vm: Interpreter, f: Frame, arg: int) -> None:
    raise Break(f"intrinsic {arg}", "type parameters and exception groups are not captured")


def load_from_dict_or(vm: Interpreter, f: Frame, arg: object) -> None:
    raise Break("a class body", "class bodies are not captured")


def for_iter_target(site: Site) -> Jump:
    """The instruction after END_FOR at which an exhausted loop continues: only a specialised FOR_ITER runs END_FOR."""
    return Jump(site.next + 2 * site.arg + 2)


TABLE: dict[str, Op] = {
    **py311.TABLE,
    "LOAD_ATTR": Op(load_attr, attribute_name),
    "LOAD_SUPER_ATTR": Op(load_super_attr, super_name),
    "COMPARE_OP": Op(opcodes_data.compare_op, lambda site: opcodes_data.COMPARISONS[site.arg >> 4]),
    "FOR_ITER": Op(stack_opcodes.for_iter, for_iter_target),
    "SEND": Op(send, forward),
    "END_SEND": Op(end_send, raw),
    "CLEANUP_THROW": Op(cleanup_throw, raw),
    "CALL_INTRINSIC_1": Op(intrinsic_1, raw),
    "CALL_INTRINSIC_2": Op(intrinsic_2, raw),
    "LOAD_FROM_DICT_OR_GLOBALS": Op(load_from_dict_or, name),
    "LOAD_FROM_DICT_OR_DEREF": Op(load_from_dict_or, raw),
}
