"""Calls of `operator.itemgetter`, `attrgetter` and `methodcaller`: the attributes or items may be written in Python."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.calls.calls import call_instance
from smelt.capture.core import sources
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import CALL
from smelt.capture.core.values import LEAVES
from smelt.capture.python import containers


def _given(getter: Any) -> tuple[Args, Kwargs]:
    """The arguments that a getter was made with."""
    made, given = getter.__reduce__()
    return (*made.args, *given) if isinstance(made, functools.partial) else given, getattr(made, "keywords", {})


def _arguments(getter: object) -> Args:
    positional, named = _given(getter)
    return (*positional, *named, *named.values())


def _known(vm: Interpreter, getter: object) -> bool:
    """Whether a getter's arguments are plain data. The arguments of an external getter are guarded."""
    source = vm.source_of(getter)
    if source is None:
        return True
    given = _arguments(getter)
    if not all(type(each) in LEAVES for each in given):
        return False
    vm.guards.check(sources.called(source, _arguments, "parts"), native.EQ, given)
    return True


def _getter(kind: type, get: Callable[[Interpreter, object, Any], object]) -> None:
    def call(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or kwargs or not _known(vm, fn):
            return call_instance(vm, fn, args, kwargs)
        found = tuple(get(vm, args[0], key) for key in _given(fn)[0])
        return found[0] if len(found) == 1 else found

    CALL(kind)(call)


def _attribute(vm: Interpreter, value: object, path: str) -> object:
    return functools.reduce(vm.load_attr, path.split("."), value)


_getter(operator.itemgetter, containers.subscript)
_getter(operator.attrgetter, _attribute)


@CALL(operator.methodcaller)
def call_method_caller(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Call an `operator.methodcaller` object."""
    if len(args) != 1 or kwargs or not _known(vm, fn):
        return call_instance(vm, fn, args, kwargs)
    (name, *positional), named = _given(fn)
    return vm.call(vm.load_attr(args[0], name), tuple(positional), dict(named))
