"""Handlers of the opcodes for exceptions, `with` and `match` that all versions share."""

from __future__ import annotations

import builtins
import collections.abc
import dis
import inspect
import types
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break, UserError, user, user_raise
from smelt.capture.core.except_clauses import catches
from smelt.capture.core.frames import OUTER, Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.policy import is_frozen
from smelt.capture.python import containers
from smelt.capture.python.attribute_reads import find_in_class, python_method
from smelt.capture.python.stack_opcodes import opcode, take


@opcode("PUSH_EXC_INFO")
def push_exc_info(vm: Interpreter, f: Frame, arg: object) -> None:
    error = f.stack.pop()
    f.stack.append(f.handled[-1] if f.handled else OUTER)
    f.stack.append(error)
    f.handled.append(error)
    f.handled_at.append(len(f.stack) - 2)


@opcode("POP_EXCEPT")
def pop_except(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.pop()
    if f.handled:
        f.handled.pop()
        f.handled_at.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(vm: Interpreter, f: Frame, arg: object) -> None:
    kinds = vm.effects.plain(f.stack.pop())
    f.stack.append(user(catches, f.stack[-1], kinds))


@opcode("CHECK_EG_MATCH")
def check_eg_match(vm: Interpreter, f: Frame, arg: object) -> None:
    raise Break("except*", "exception groups are not captured")


@opcode("RERAISE")
def reraise(vm: Interpreter, f: Frame, arg: int) -> None:
    error = f.stack.pop()  # the element below it is only for tracebacks
    raise UserError(error)


@opcode("RAISE_VARARGS")
def raise_varargs(vm: Interpreter, f: Frame, arg: int) -> None:
    items = take(f, arg)
    if not items:
        error = vm.handled() or vm.outer_exception()
        raise UserError(error if error is not None else RuntimeError("No active exception to reraise"))
    error = _made(vm, items[0], "exceptions must derive from BaseException")
    if id(error) in vm.sources and (arg == 2 or (handled := vm.context()) is not None and handled is not error):
        raise Break("an exception made outside of the function is raised", "it gets another cause or context")
    if arg == 2:
        cause = items[1]
        error.__cause__ = None if cause is None else _made(vm, cause, "exception causes must derive from BaseException")
    _set_context(vm, error)
    raise UserError(error)


def _made(vm: Interpreter, raised: object, otherwise: str) -> BaseException:
    """The exception of a `raise` statement: the operand itself, or an instance of the operand if it is a class."""
    if isinstance(raised, BaseException):
        return raised
    if not isinstance(raised, type) or not issubclass(raised, BaseException):
        user_raise(TypeError(otherwise))
    error = vm.call(raised, (), {})
    if not isinstance(error, BaseException):
        name = vm.type_of(error)
        user_raise(TypeError(f"calling {raised!r} should have returned an instance of BaseException, not {name!r}"))
    return error


def _set_context(vm: Interpreter, error: BaseException) -> None:
    """Set the exception being handled as the context of a raised one, in place of its former context, without a
    cycle."""
    each = vm.handled()
    if each is None or each is error or id(error) in vm.sources:
        return
    context, seen = each, {id(each)}
    while each.__context__ is not None and id(each.__context__) not in seen:
        if each.__context__ is error:
            each.__context__ = None
            break
        each = each.__context__
        seen.add(id(each))
    error.__context__ = context


@opcode("BEFORE_WITH")
def before_with(vm: Interpreter, f: Frame, arg: object) -> None:
    manager = f.stack[-1]
    refused = f"{type(manager).__name__!r} object does not support the context manager protocol"
    enter = _of_class(vm, manager, "__enter__", refused)
    leave = _of_class(vm, manager, "__exit__", f"{refused} (missed __exit__ method)")
    entered = vm.call(enter, (), {})
    f.stack[-1] = leave
    f.stack.append(entered)


def _of_class(vm: Interpreter, manager: object, name: str, refused: str) -> object:
    """A method of a context manager, looked up in its class and not in the instance, as `with` does."""
    if not hasattr(type(manager), name):
        find_in_class(vm, type(manager), name)
        user_raise(TypeError(refused))
    method = python_method(vm, manager, name)
    return vm.load_attr(manager, name) if method is None else types.MethodType(method, manager)


@opcode("WITH_EXCEPT_START")
def with_except_start(vm: Interpreter, f: Frame, arg: object) -> None:
    error, leave = f.stack[-1], f.stack[-4]
    trace = None
    if _wants_traceback(leave):  # restarts if capture raised the error: Python raises it then
        trace = vm.load_attr(error, "__traceback__")
    f.stack.append(vm.call(leave, (type(error), error, trace), {}))


def _wants_traceback(leave: object) -> bool:
    """Whether a method of the program reads its traceback argument."""
    function = leave.__func__ if isinstance(leave, types.MethodType) else leave
    if not isinstance(function, types.FunctionType) or is_frozen(function.__module__):
        return False
    code = function.__code__
    if code.co_flags & inspect.CO_VARARGS or code.co_argcount < 4:
        return True
    name = code.co_varnames[3]
    return any("LOAD" in each.opname and _names(name, each.argval) for each in dis.get_instructions(code))


def _names(name: str, argval: object) -> bool:
    """Whether an instruction loads or stores this variable; from 3.13 on, one instruction may access two."""
    return name == argval or isinstance(argval, tuple) and name in argval


@opcode("GET_LEN")
def get_len(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(containers.length(vm, f.stack[-1]))


@opcode("MATCH_MAPPING")
def match_mapping(vm: Interpreter, f: Frame, arg: object) -> None:
    f.stack.append(isinstance(f.stack[-1], collections.abc.Mapping))


@opcode("MATCH_SEQUENCE")
def match_sequence(vm: Interpreter, f: Frame, arg: object) -> None:
    value = f.stack[-1]
    f.stack.append(isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes, bytearray)))


@opcode("MATCH_KEYS")
def match_keys(vm: Interpreter, f: Frame, arg: object) -> None:
    keys, subject = f.stack[-1], f.stack[-2]
    found = all(containers.contains(vm, subject, key) for key in keys)
    f.stack.append(tuple(containers.subscript(vm, subject, key) for key in keys) if found else None)


@opcode("MATCH_CLASS")
def match_class(vm: Interpreter, f: Frame, arg: int) -> None:
    names, cls, subject = f.stack.pop(), f.stack.pop(), f.stack.pop()
    f.stack.append(_matched(vm, subject, cls, arg, names))


_MATCH_SELF = 1 << 22
"""_Py_TPFLAGS_MATCH_SELF: a single positional pattern of the class matches the object itself; subclasses inherit it."""


def _matched(
    vm: Interpreter, subject: object, cls: type, count: int, names: tuple[str, ...]
) -> tuple[object, ...] | None:
    """The attributes of the subject for the patterns of a class pattern; None if the subject does not match."""
    if not isinstance(cls, type):
        user(_match_by, cls)  # raises
    if not vm.call(builtins.isinstance, (subject, cls), {}):
        return None
    values: list[object] = []
    if count:
        positional = _match_args(vm, cls)
        itself = positional is None and bool(cls.__flags__ & _MATCH_SELF)
        _expect_positional(cls, 1 if itself else len(positional or ()), count)
        if itself:
            values.append(subject)
        else:
            names = (*(positional or ())[:count], *names)
    seen: set[str] = set()
    for name in names:  # entries of `__match_args__` may be of types other than str
        if type(name) is not str:
            user_raise(TypeError(f"__match_args__ elements must be strings (got {vm.type_of(name).__name__})"))
        if name in seen:
            user_raise(TypeError(f"{native.name_in_c(cls)}() got multiple sub-patterns for attribute {name!r}"))
        seen.add(name)
        try:
            values.append(vm.load_attr(subject, name))
        except UserError as error:
            if isinstance(error.error, AttributeError):
                return None
            raise
    return tuple(values)


def _match_by(cls: Any) -> None:
    match None:
        case cls():
            pass


def _match_args(vm: Interpreter, cls: type) -> tuple[str, ...] | None:
    """The `__match_args__` of a class; None if it has none."""
    try:
        names = vm.load_attr(cls, "__match_args__")
    except UserError as error:
        if isinstance(error.error, AttributeError):
            return None
        raise
    if vm.type_of(names) is not tuple:
        wrong = vm.type_of(names).__name__
        user_raise(TypeError(f"{native.name_in_c(cls)}.__match_args__ must be a tuple (got {wrong})"))
    return tuple(vm.effects.plain(names))


def _expect_positional(cls: type, allowed: int, count: int) -> None:
    if allowed < count:
        plural = "" if allowed == 1 else "s"
        user_raise(
            TypeError(f"{native.name_in_c(cls)}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
        )


@opcode("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "ASYNC_GEN_WRAP")
def asynchronous(vm: Interpreter, f: Frame, arg: object) -> None:
    raise Break("async code", "coroutines are not captured")
