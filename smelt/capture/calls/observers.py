"""Detects deferred calls (logging, warnings, print) that run code of the program and may change what the program reads.

Handlers, filters, streams and hooks of the program may change objects that the program reads later. Capture collects
the objects that they can reach. If the program has read one of these objects, or reads one later, the graph ends at the
call, which then runs in program order.
"""

from __future__ import annotations

import dis
import logging
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break, Restart
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.policy import is_frozen
from smelt.capture.core.values import is_bound, own_dict
from smelt.capture.tensors.fallible_ops import note_deferred

_MAX_FOLLOWED_OBJECTS = 2000
"""Maximum number of objects that are searched from each object or function of the program that a call runs."""


class Observed:
    """The objects that code of the program may change when the deferred calls are made.

    Attributes:
        step: the step of the capture at which the first of these calls was deferred.
        targets: identities of the objects, and (identity of globals, name) of the global variables, that the calls may
            write to.
    """

    def __init__(self) -> None:
        self.step = 0
        self.targets: set[object] = set()
        self._alive: list[object] = []

    def add(self, vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> None:
        """Record a deferred call.

        Raises:
            Break: the program has read something that the call may change.
        """
        runs = _code_run_by(vm, fn, args, kwargs)
        # appending a warning to a list does not raise, and logging ignores errors of sys.stderr
        raising = any(each is not sys.stderr and not is_bound(each) for each in runs) and not _is_silent(fn, args)
        note_deferred(vm, fn, raising)
        found = [target for each in runs for target in self._reached(each)]
        if any(id(each) in vm.python.created for each in runs) or _is_changed(vm, fn, args) or _is_redirected(vm):
            raise Break(f"{getattr(fn, '__qualname__', fn)} after its handlers or hooks were changed", "it uses them")
        if any(target in vm.sources if type(target) is int else target in vm.reads for target in found):
            raise Break(
                f"{getattr(fn, '__qualname__', fn)} runs code of the program", "it may change what is read here"
            )
        if found and not self.targets:
            self.step = vm.step
        self.targets.update(found)

    def look(self, target: object) -> None:
        """Note that the program reads an external object or a global variable.

        Raises:
            Restart: a deferred call may change the object or variable; the graph ends before that call.
        """
        if target in self.targets:
            raise Restart(
                self.step, Break("a call that is put off runs code of the program", "its effect is looked at")
            )

    def _reached(self, start: Any) -> Iterator[object]:
        """The identities of objects and the global variables that a function or object of the program can reach."""
        left, seen = [start], {id(start)}
        while left and len(seen) < _MAX_FOLLOWED_OBJECTS:
            value = left.pop()
            self._alive.append(value)
            if isinstance(value, (types.FunctionType, types.MethodType)):
                function: Any = value.__func__ if isinstance(value, types.MethodType) else value
                yield from _globals_of(function)
                referents: list[object] = [*(function.__closure__ or ()), *_named(function)]
                referents += [value.__self__] if isinstance(value, types.MethodType) else []
            elif is_bound(value):
                referents = [value.__self__]
            elif isinstance(value, types.CellType):
                yield id(value)
                referents = _content(value)
            elif (
                isinstance(value, (type, types.ModuleType))
                or is_frozen(type(value).__module__)
                and not _is_container(value)
            ):
                continue
            else:
                yield id(value)
                referents = _referents(value)
            for referent in referents:
                if id(referent) not in seen and not isinstance(referent, (int, float, str, bytes, type(None))):
                    seen.add(id(referent))
                    left.append(referent)


def _is_container(value: object) -> bool:
    return isinstance(value, (list, dict, set, tuple))


def _content(cell: types.CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _globals_of(function: types.FunctionType) -> Iterator[object]:
    """The global variables that the function's code writes, as (identity of globals, name)."""
    if not is_frozen(function.__module__):
        for instruction in dis.get_instructions(function.__code__):
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                yield id(function.__globals__), instruction.argval


def _named(function: types.FunctionType) -> list[object]:
    if is_frozen(function.__module__):
        return []
    return [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]


def _referents(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, set, tuple)):
        return list(value)
    methods = [m for base in type(value).__mro__ if not is_frozen(base.__module__) for m in vars(base).values()]
    attributes = own_dict(value)
    return [*(attributes or {}).values(), *(m for m in methods if isinstance(m, types.FunctionType))]


def _code_run_by(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> list[object]:
    """The objects and functions of the program whose code a call runs."""
    found: list[object] = []
    if args and isinstance(args[0], (logging.Handler, logging.Filter)):
        return found  # a handler or filter that calls a method of its base class
    if fn is print:
        found = [kwargs.get("file") or sys.stdout]
    elif getattr(fn, "__module__", "") == "logging" or args and isinstance(args[0], logging.Logger):
        logger = args[0] if args and isinstance(args[0], logging.Logger) else logging.root
        found = [*_of_logger(logger), sys.stderr]
    else:
        found = [
            sys.stderr,
            *(_module_attribute(vm, name) for name in ("showwarning", "formatwarning", "_showwarnmsg_impl")),
        ]
    return [each for each in found if not _is_librarys(each)]


def _is_silent(fn: object, args: Args) -> bool:
    """Whether the call logs at a level that its logger ignores."""
    logger = args[0] if args and isinstance(args[0], logging.Logger) else logging.root
    level = getattr(logging, getattr(fn, "__name__", "").upper(), None)
    return type(level) is int and not logger.isEnabledFor(level)


def _is_changed(vm: Interpreter, fn: object, args: Args) -> bool:
    """Whether changes of the program to a logger or its handlers are still pending: residual code writes changed lists
    after it makes deferred calls.
    """
    logger = next((each for each in args if isinstance(each, logging.Logger)), None)
    if logger is None:
        return False
    used = [logger, logger.handlers, logger.filters, *logger.handlers]
    pending = {id(store.target) for store in vm.effects.stores.values()} | vm.effects.appended.keys()
    pending |= {id(mirror.original) for mirror in vm.effects.mirrors.values() if mirror.changed}
    return any(id(each) in pending for each in used)


def _is_redirected(vm: Interpreter) -> bool:
    """Whether the streams of the process are replaced at this point, as `contextlib.redirect_stdout` does."""
    stores = [(name, vm.effects.variable(sys, name)) for name in ("stdout", "stderr")]
    return any(store is not None and store.value is not vars(sys)[name] for name, store in stores)


def _module_attribute(vm: Interpreter, name: str) -> object:
    """An attribute of the module `warnings`: the value that the program has assigned, else the module's own."""
    store = vm.effects.variable(warnings, name)
    return vars(warnings)[name] if store is None else store.value


def _is_librarys(value: object) -> bool:
    if is_bound(value):
        return False
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return is_frozen(value.__module__)
    return is_frozen(type(value).__module__)


def _of_logger(logger: logging.Logger | None) -> Iterator[object]:
    """The handlers, filters, formatters and streams that a record passes through."""
    first = True
    while logger is not None:
        yield from logger.filters if first else ()
        for handler in logger.handlers:
            yield from (handler, handler.formatter, *handler.filters, getattr(handler, "stream", None))
        if not logger.propagate:
            return
        logger, first = logger.parent, False
