"""Reads of context variables, and writes to them that the program resets within the captured code."""

from __future__ import annotations

import contextvars
from typing import Any

from smelt.capture.core import sources
from smelt.capture.core.breaks import Break, Restart, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.python import containers

_UNREAD = object()
_VALUE = "get()"
"""The key of a variable's value in `vm.reads`."""


class Setting:
    """The Token of a variable that is set only in the interpreter, until it is reset.

    Attributes:
        before: the value that the program had read or set before; _UNREAD if it had done neither.
        step: number of the captured frame's instruction that set the variable, counted from the frame's start.
        at: the location of that instruction in the user's code.
    """

    def __init__(self, variable: contextvars.ContextVar[object], before: object, step: int, at: object) -> None:
        self.variable, self.before, self.step, self.at = variable, before, step, at


@special(contextvars.ContextVar.get)
def context_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """ContextVar.get([default])"""
    variable, *default = args
    key = (id(variable), _VALUE)
    if key in vm.reads:
        return vm.reads[key]
    source = vm.sources.get(id(variable)) or sources.const(variable, variable.name)
    value_now, value_source = _value_of(variable), sources.called(source, _value_of, "held")
    if value_now is containers.END:
        vm.guards.check(value_source, sources.native.IS, value_now)
        return default[0] if default else user(variable.get)
    value = vm.reads[key] = vm.external(value_now, value_source)
    return value


def _value_of(variable: contextvars.ContextVar[object]) -> Any:
    """The value of a variable; END if it is not set. Its default needs no guard, because it never changes."""
    return variable.get(containers.END)


@special(contextvars.ContextVar.set)
def context_set(vm: Interpreter, args: Args, kwargs: Kwargs) -> Setting:
    """ContextVar.set(value)"""
    variable, value = args
    key = (id(variable), _VALUE)
    setting = Setting(variable, vm.reads.get(key, _UNREAD), vm.step, vm.frames[-1].at)
    vm.reads[key] = value
    vm.python.settings.append(setting)
    return setting


@special(contextvars.ContextVar.reset)
def context_reset(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """ContextVar.reset(token)"""
    variable, setting = args
    if not vm.python.settings or vm.python.settings[-1] is not setting or setting.variable is not variable:
        raise Break("a call of ContextVar.reset", "the variable was not set last, or not in what is captured")
    vm.python.settings.pop()
    if setting.before is _UNREAD:
        del vm.reads[id(variable), _VALUE]
    else:
        vm.reads[id(variable), _VALUE] = setting.before


def refuse_settings(vm: Interpreter) -> None:
    """Check at the end of the graph that no variable is still set, since the real context does not have the value.

    Raises:
        Restart: a variable is still set; the next attempt stops before the first one is set.
    """
    if vm.python.settings:
        first = vm.python.settings[0]
        stop = Break("a call of ContextVar.set", f"{first.variable.name} is still set where the graph ends")
        stop.at = first.at
        raise Restart(first.step, stop)
