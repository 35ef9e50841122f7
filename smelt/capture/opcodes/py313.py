"""The opcode table of CPython 3.13: decoders and handlers that differ from 3.12."""

from __future__ import annotations

from smelt.capture._native import NULL
from smelt.capture.control_flow.branches import to_bool
from smelt.capture.core.bytecode import Jump, Op, Site
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.opcodes import calls as opcodes_calls
from smelt.capture.opcodes import data as opcodes_data
from smelt.capture.opcodes import py311, py312
from smelt.capture.python import stack_opcodes
from smelt.capture.python.stack_opcodes import raw


def load_global(vm: Interpreter, f: Frame, arg: tuple[bool, str]) -> None:
    push, key = arg
    f.stack.append(vm.load_global(f, key))
    if push:
        f.stack.append(NULL)


def load_attr(vm: Interpreter, f: Frame, arg: tuple[bool, str]) -> None:
    method, key = arg
    f.stack[-1] = vm.load_attr(f.stack[-1], key)
    if method:
        f.stack.append(NULL)


def load_super_attr(vm: Interpreter, f: Frame, arg: tuple[bool, str]) -> None:
    method, key = arg
    make, cls, obj = py312.super_attr(vm, f)
    f.stack.append(vm.load_attr(vm.call(make, (cls, obj), {}), key))
    if method:
        f.stack.append(NULL)


def call_function_ex(vm: Interpreter, f: Frame, arg: int) -> None:
    kwargs = opcodes_data.keywords(vm, f.stack.pop()) if arg & 1 else {}
    args = tuple(opcodes_data.drain(vm, f.stack.pop(), calls_len=True))
    f.stack.pop()
    fn = f.stack.pop()
    f.stack.append(vm.call(fn, args, kwargs))


def make_function(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(opcodes_calls.new_function(vm, f, f.stack.pop(), ()))


def set_function_attribute(vm: Interpreter, f: Frame, arg: int) -> None:
    fn, value = f.stack.pop(), f.stack.pop()
    if arg == 8:
        made = opcodes_calls.new_function(vm, f, fn.__code__, value)
        made.__defaults__, made.__kwdefaults__, made.__annotations__ = fn.__defaults__, fn.__kwdefaults__, {}
        made.__annotations__.update(fn.__annotations__)
        fn = made
    else:
        opcodes_calls.set_function(fn, arg, value)
    f.stack.append(fn)


def pair(site: Site) -> tuple[int, int]:
    """The two slots that one argument encodes, of four bits each."""
    return site.arg >> 4, site.arg & 15


def load_fast_load_fast(vm: Interpreter, f: Frame, arg: tuple[int, int]) -> None:
    # a phi value is read here: the next instruction can test the truth of the second variable only
    stack_opcodes.read_variable(vm, f, arg[0])
    stack_opcodes.load_fast(vm, f, arg[0])
    stack_opcodes.load_fast(vm, f, arg[1])


def store_fast_load_fast(vm: Interpreter, f: Frame, arg: tuple[int, int]) -> None:
    stack_opcodes.store_fast(vm, f, arg[0])
    stack_opcodes.load_fast(vm, f, arg[1])


def store_fast_store_fast(vm: Interpreter, f: Frame, arg: tuple[int, int]) -> None:
    stack_opcodes.store_fast(vm, f, arg[0])
    stack_opcodes.store_fast(vm, f, arg[1])


def convert_value(vm: Interpreter, f: Frame, arg: int) -> None:
    opcodes_data.format_with(vm, f, arg, "")


def format_simple(vm: Interpreter, f: Frame, arg: object) -> None:
    opcodes_data.format_with(vm, f, 0, "")


def format_with_spec(vm: Interpreter, f: Frame, arg: object) -> None:
    spec = f.stack.pop()
    opcodes_data.format_with(vm, f, 0, spec)


def for_iter_target(site: Site) -> Jump:
    """The instruction after END_FOR and POP_TOP at which an exhausted loop continues: only a specialised FOR_ITER runs
    those."""
    return Jump(site.next + 2 * site.arg + 4)


TABLE: dict[str, Op] = {
    **py312.TABLE,
    "LOAD_GLOBAL": Op(load_global, py311.global_name),
    "LOAD_ATTR": Op(load_attr, py312.attribute_name),
    "LOAD_SUPER_ATTR": Op(load_super_attr, py312.super_name),
    "CALL": Op(opcodes_calls.call_313, raw),
    "CALL_KW": Op(opcodes_calls.call_kw_313, raw),
    "CALL_FUNCTION_EX": Op(call_function_ex, raw),
    "MAKE_FUNCTION": Op(make_function, raw),
    "SET_FUNCTION_ATTRIBUTE": Op(set_function_attribute, raw),
    "LOAD_FAST_LOAD_FAST": Op(load_fast_load_fast, pair),
    "STORE_FAST_LOAD_FAST": Op(store_fast_load_fast, pair),
    "STORE_FAST_STORE_FAST": Op(store_fast_store_fast, pair),
    "COMPARE_OP": Op(opcodes_data.compare_op, lambda site: opcodes_data.COMPARISONS[site.arg >> 5]),
    "TO_BOOL": Op(to_bool, raw),
    "CONVERT_VALUE": Op(convert_value, raw),
    "FORMAT_SIMPLE": Op(format_simple, raw),
    "FORMAT_WITH_SPEC": Op(format_with_spec, raw),
    "FOR_ITER": Op(stack_opcodes.for_iter, for_iter_target),
}
