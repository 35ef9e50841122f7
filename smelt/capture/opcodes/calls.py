"""Handlers of the opcodes for calls, functions, generators and imports."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture._native import NULL
from smelt.capture.core import sources
from smelt.capture.core.breaks import UserError, is_programs
from smelt.capture.core.frames import RETURN, YIELD, Frame
from smelt.capture.core.generators import TracedGenerator
from smelt.capture.core.interface import Interpreter
from smelt.capture.python import containers
from smelt.capture.python.stack_opcodes import const, name, opcode, own_constant, take

# -- calls ----------------------------------------------------------------


@opcode("KW_NAMES", decode=const)
def kw_names(vm: Interpreter, f: Frame, arg: tuple[str, ...]) -> None:
    f.kw_names = arg


def call_311(vm: Interpreter, f: Frame, arg: int) -> None:
    """CALL of Python 3.11 and 3.12: the stack has (NULL, function) or (unbound method, object) below the arguments."""
    items = take(f, arg)
    second, first = f.stack.pop(), f.stack.pop()
    names, f.kw_names = f.kw_names, ()
    if first is NULL:
        make_call(vm, f, second, NULL, items, names)
    else:
        make_call(vm, f, first, second, items, names)


def call_313(vm: Interpreter, f: Frame, arg: int, names: tuple[str, ...] = ()) -> None:
    """CALL of Python 3.13: the stack has (function, NULL) or (unbound method, object) below the arguments."""
    items = take(f, arg)
    first, fn = f.stack.pop(), f.stack.pop()
    make_call(vm, f, fn, first, items, names)


def call_kw_313(vm: Interpreter, f: Frame, arg: int) -> None:
    """CALL_KW of Python 3.13: CALL with the names of the keyword arguments on top of the stack."""
    call_313(vm, f, arg, f.stack.pop())


def make_call(
    vm: Interpreter, f: Frame, fn: object, first: object, items: list[object], names: tuple[str, ...]
) -> None:
    """Call `fn` with the arguments `first` (unless NULL) and `items`; the last items are the keyword arguments
    `names`."""
    if names:
        split = len(items) - len(names)
        kwargs = dict(zip(names, items[split:], strict=True))
        items = items[:split]
    else:
        kwargs = {}
    args = tuple(items) if first is NULL else (first, *items)
    f.stack.append(vm.call(fn, args, kwargs))


@opcode("RETURN_VALUE")
def return_value(vm: Interpreter, f: Frame, arg: object) -> object:
    f.value = f.stack.pop()
    return RETURN


@opcode("RETURN_CONST", decode=const)
def return_const(vm: Interpreter, f: Frame, arg: object) -> object:
    f.value = own_constant(vm, arg) if type(arg) is tuple else arg
    return RETURN


@opcode("RETURN_GENERATOR")
def return_generator(vm: Interpreter, f: Frame, arg: object) -> object:
    return RETURN


@opcode("YIELD_VALUE")
def yield_value(vm: Interpreter, f: Frame, arg: object) -> object:
    f.value = f.stack.pop()
    return YIELD


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(vm: Interpreter, f: Frame, arg: object) -> None:
    if type(f.stack[-1]) is not TracedGenerator:
        f.stack[-1] = containers.iterate(vm, f.stack[-1])


def send_value(vm: Interpreter, f: Frame) -> tuple[bool, object]:
    """Pop the sent value and run one step of `yield from`: (True, yielded value) or (False, returned value)."""
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
    except BaseException as error:
        if is_programs(error):
            raise UserError(error) from None
        raise


def set_function(fn: types.FunctionType, flag: int, value: Any) -> None:
    """Set the field of a function that a flag of MAKE_FUNCTION or SET_FUNCTION_ATTRIBUTE selects, except the
    closure."""
    if flag == 1:
        fn.__defaults__ = value
    elif flag == 2:
        fn.__kwdefaults__ = value
    elif flag == 4:
        pairs = value if isinstance(value, dict) else dict(zip(value[::2], value[1::2], strict=True))
        fn.__annotations__ = pairs


def new_function(vm: Interpreter, f: Frame, code: types.CodeType, closure: tuple[Any, ...]) -> types.FunctionType:
    """A new function of the program."""
    blank = closure or tuple(types.CellType() for _ in code.co_freevars)
    fn = types.FunctionType(code, f.globals, code.co_name, None, blank)
    fn.__qualname__ = code.co_qualname
    if f.globals.get("__name__") is not None:
        fn.__module__ = f.globals["__name__"]
    vm.globals_source(f.globals)
    vm.python.created.add(id(fn))
    vm.keep(fn)
    return fn


# -- imports ----------------------------------------------------------------


@opcode("IMPORT_NAME", decode=name)
def import_name(vm: Interpreter, f: Frame, arg: str) -> None:
    names, level = f.stack.pop(), f.stack.pop()
    f.stack.append(vm.native(__import__, arg, f.globals, None, names, level))
    _guard_import(vm, _absolute_name(arg, level, f.globals))


def _absolute_name(name: str, level: int, globals: dict[str, Any]) -> str:
    """The absolute name (the key of `sys.modules`) of the module in an import statement."""
    if not level:
        return name
    package = globals.get("__package__")
    if package is None:
        package = globals["__name__"] if "__path__" in globals else globals["__name__"].rpartition(".")[0]
    return importlib.util.resolve_name("." * level + name, package)


def _guard_import(vm: Interpreter, name: str) -> None:
    """Guard that `sys.modules` has the same module under this name, since tests and reloads replace modules."""
    modules = sources.const(sys.modules, "sys.modules")
    for end in range(len(name)):
        if end + 1 == len(name) or name[end + 1] == ".":
            found = name[: end + 1]
            if found in sys.modules:
                vm.guards.check(sources.dict_item(modules, found), native.IS, sys.modules[found])


@opcode("IMPORT_FROM", decode=name)
def import_from(vm: Interpreter, f: Frame, arg: str) -> None:
    try:
        f.stack.append(vm.load_attr(f.stack[-1], arg))
    except UserError:
        f.stack.append(vm.native(_import_from, f.stack[-1], arg))


def _import_from(module: types.ModuleType, attribute: str) -> object:
    return importlib.import_module(f"{module.__name__}.{attribute}")
