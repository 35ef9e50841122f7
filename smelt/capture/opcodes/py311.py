"""The opcode table of CPython 3.11: decoders and handlers that other versions do not share."""

from __future__ import annotations

from types import CodeType

from smelt.capture._native import NULL
from smelt.capture.control_flow import branches  # noqa: F401 (they fill COMMON)
from smelt.capture.core.bytecode import Jump, Op, Site
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.opcodes import calls as opcodes_calls
from smelt.capture.opcodes import data as opcodes_data
from smelt.capture.opcodes import exceptions  # noqa: F401 (they fill COMMON)
from smelt.capture.python import stack_opcodes  # noqa: F401 (they fill COMMON)
from smelt.capture.python.stack_opcodes import COMMON, const, forward, name, raw


def load_global(vm: Interpreter, f: Frame, arg: tuple[bool, str]) -> None:
    push, key = arg
    value = vm.load_global(f, key)
    if push:
        f.stack.append(NULL)
    f.stack.append(value)


def global_name(site: Site) -> tuple[bool, str]:
    """(whether to push a NULL first, name)"""
    return bool(site.arg & 1), site.code.co_names[site.arg >> 1]


def load_attr(vm: Interpreter, f: Frame, arg: str) -> None:
    f.stack[-1] = vm.load_attr(f.stack[-1], arg)


def load_method(vm: Interpreter, f: Frame, arg: str) -> None:
    value = vm.load_attr(f.stack[-1], arg)
    f.stack[-1] = NULL
    f.stack.append(value)


def call_function_ex(vm: Interpreter, f: Frame, arg: int) -> None:
    kwargs = opcodes_data.keywords(vm, f.stack.pop()) if arg & 1 else {}
    args = tuple(opcodes_data.drain(vm, f.stack.pop(), calls_len=True))
    fn = f.stack.pop()
    f.stack.pop()
    f.stack.append(vm.call(fn, args, kwargs))


def make_function(vm: Interpreter, f: Frame, arg: int) -> None:
    code: CodeType = f.stack.pop()
    closure = f.stack.pop() if arg & 8 else ()
    fn = opcodes_calls.new_function(vm, f, code, closure)
    for flag in (4, 2, 1):
        if arg & flag:
            opcodes_calls.set_function(fn, flag, f.stack.pop())
    f.stack.append(fn)


def send(vm: Interpreter, f: Frame, arg: int) -> None:
    more, value = opcodes_calls.send_value(vm, f)
    if more:
        f.stack.append(value)
    else:
        f.stack[-1] = value
        f.pc = arg


def for_iter_target(site: Site) -> Jump:
    """The index of the instruction where the loop continues when the iterator is exhausted."""
    return Jump(site.next + 2 * site.arg)


TABLE: dict[str, Op] = {
    **COMMON,
    "LOAD_GLOBAL": Op(load_global, global_name),
    "LOAD_ATTR": Op(load_attr, name),
    "LOAD_METHOD": Op(load_method, name),
    "CALL": Op(opcodes_calls.call_311, raw),
    "CALL_FUNCTION_EX": Op(call_function_ex, raw),
    "MAKE_FUNCTION": Op(make_function, raw),
    "COMPARE_OP": Op(opcodes_data.compare_op, lambda site: opcodes_data.COMPARISONS[site.arg]),
    "FOR_ITER": Op(stack_opcodes.for_iter, for_iter_target),
    "SEND": Op(send, forward),
    "KW_NAMES": Op(opcodes_calls.kw_names, const),
}
