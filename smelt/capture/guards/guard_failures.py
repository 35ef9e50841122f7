"""The reason why a cache entry misses: the first guard that fails, with the captured and the present value.

The log of recompiles, `stats()["recompile_reasons"]`, stances and the warning about the recompile limit use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core.sources import Source
from smelt.capture.core.values import C_METHODS
from smelt.capture.guards.guard_text import value_text
from smelt.capture.guards.guards import Flag, GuardList


@dataclass(frozen=True)
class GuardFailure:
    """A guard that fails for the present call.

    Attributes:
        subject: the checked property, as a Python expression (`x.shape[0]`, `self.training`).
        before, now: the value at capture and the present value, as text.
        at: the user's line that needed the guard; "" if no line did.
        source: the source of the value; None for modes and settings.
        dim: the dimension of a tensor whose size changed; None for other guards.
    """

    subject: str
    before: str
    now: str
    at: str
    source: Source | None = None
    dim: int | None = None

    def __str__(self) -> str:
        location = f"  # {self.at}" if self.at else ""
        return f"{self.subject} was {self.before}, is {self.now}{location}"


def what_changed(
    guards: GuardList,
    evaluated: native.Guards,
    slots: Sequence[object],
    globals: dict[str, object],
    function: FunctionType | None,
) -> GuardFailure | None:
    """The first guard that fails for a frame that is about to start; None when all of them hold.

    Args:
        guards: the guards as they were collected.
        evaluated: the same guards in evaluable form.
        slots, globals, function: the local variables, the globals and the function object of the frame.
    """
    failure = evaluated.failure(slots, globals, function)
    if failure is None:
        return None
    what, index, found = failure
    if what == "fetch":
        source = guards.sources[index]
        locations = [p for (i, _, _), p in zip(guards.checks, guards.locations, strict=True) if i == index]
        return GuardFailure(source.text, "there", "missing", str(locations[0] or "") if locations else "", source)
    fetch, kind, operand = evaluated.checks[index]
    fact = _false_fact(operand, evaluated, slots, globals, function) if kind == native.PYTHON else None
    if fact is not None:
        return fact
    subject = guards.sources[fetch] if fetch >= 0 else None
    at = str(guards.locations[index] or "")
    change = _DESCRIBED.get(kind, _plain)(subject, operand, found, guards)
    return GuardFailure(change.subject, change.before, change.now, at, subject, change.dim)


def _false_fact(
    operand: object,
    evaluated: native.Guards,
    slots: Sequence[object],
    globals: dict[str, object],
    function: FunctionType | None,
) -> GuardFailure | None:
    """The first false fact of a check of sizes, with the sizes in it; None for other checks."""
    fn, indices = operand[:2] if isinstance(operand, tuple) else (operand, ())
    facts = getattr(fn, "facts", None)
    if facts is None:
        return None
    fetched = native.Guards(evaluated.fetches[: max(indices) + 1], (), indices).check(slots, globals, function)
    if fetched is None:
        return None
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    values = dict(zip(names, fetched, strict=True))
    for fact in facts:
        if not eval(fact.text, {}, values):
            numbers = re.sub(r"\b[a-z]\d+\b", lambda name: value_text(values.get(name[0], name[0])), fact.text)
            return GuardFailure(fact.shown, "True", f"False ({numbers})", fact.reason)
    return None


class Change(NamedTuple):
    """The difference that makes a guard fail; the fields have the same meaning as in `GuardFailure`."""

    subject: str
    before: str
    now: str
    dim: int | None = None


def _plain(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    missing = found is native.NULL
    return Change(source.text, value_text(operand), "missing" if missing else value_text(found))


def _missing(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    return Change(source.text, "missing", value_text(found))


def _type(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    return Change(f"type({source.text})", value_text(operand), value_text(type(found)))


def _length(source: Source, operand: object, found: Any, guards: GuardList) -> Change:
    count = _method_of_c(found, "__len__")
    return Change(f"len({source.text})", str(operand), value_text(found) if count is None else str(count(found)))


def _keys(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    keys = _method_of_c(found, "__iter__") if isinstance(found, dict) else None
    try:
        now = found if keys is None else tuple(keys(found))
    except KeyError:  # methods of dict have changed an OrderedDict
        now = tuple(dict.__iter__(cast("dict[object, object]", found)))
    return Change(f"tuple({source.text})", value_text(operand), value_text(now))


def _method_of_c(value: object, name: str) -> Callable[[object], Iterable[object]] | None:
    """The C method of this name in the value's class or its nearest base, so that no method of the program runs; None
    if no base has one."""
    methods = (vars(base).get(name) for base in type(value).__mro__)
    return next((method for method in methods if type(method) in C_METHODS), None)


def _has(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    return Change(f"{value_text(operand)} in {source.text}", "True", "False")


def _has_not(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    return Change(f"{value_text(operand)} in {source.text}", "False", "True")


def _tensor(source: Source, spec: native.TensorSpec, found: object, guards: GuardList) -> Change:
    if not isinstance(found, torch.Tensor):
        return Change(source.text, "a tensor", value_text(found))
    mismatch = spec.mismatch(found) or "metadata"
    what, _, rest = mismatch.partition(": expected ")
    before, _, now = rest.partition(", got ")
    dim = int(what[6:-1]) if what.startswith("shape[") else None
    if what == "requires_grad":
        now = str(found.requires_grad)
    return Change(f"{source.text}.{_ATTRIBUTES.get(what, what)}", before, now, dim)


_ATTRIBUTES = {"dimensions": "ndim", "class": "__class__", "dispatch keys": "dispatch_keys"}


def _alias(source: Source, other: int, found: object, guards: GuardList) -> Change:
    return Change(f"{source.text} is {guards.sources[other].text}", "True", "False")


def _no_alias(source: Source, other: int, found: object, guards: GuardList) -> Change:
    return Change(f"{source.text} is {guards.sources[other].text}", "False", "True")


def _none_alias(source: Source, others: tuple[int, ...], found: object, guards: GuardList) -> Change:
    names = ", ".join(guards.sources[i].text for i in others)
    return Change(names, "all different objects", "partly the same")


def _state(source: Source, before: tuple[object, ...], now: tuple[object, ...], guards: GuardList) -> Change:
    differing = [
        (name, a, b) for name, a, b in zip(native.state_names(), before, now, strict=False) if a != b
    ]  # the dispatch keys are last, because they differ whenever most other modes do
    name, old, new = differing[0] if differing else ("modes", before, now)
    return Change(name, value_text(old), value_text(new))


def _module(source: Source, operand: tuple[bool | None, tuple[str, ...]], found: object, guards: GuardList) -> Change:
    training, names = operand
    attributes = getattr(found, "__dict__", {})
    if training is not None and attributes.get("training") is not training:
        return Change(f"{source.text}.training", str(training), str(attributes.get("training")))
    hooked = next((name for name in names if attributes.get(name)), names[0] if names else "hooks")
    return Change(f"{source.text}.{hooked}", "empty", value_text(attributes.get(hooked)))


def _finalizer(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    return Change(f"what happens when {source.text} dies", "nothing", "code of the program runs")


def _function(source: Source, fields: tuple[object, object, object], found: object, guards: GuardList) -> Change:
    for name, before in zip(("__code__", "__defaults__", "__kwdefaults__"), fields, strict=True):
        now = getattr(found, name, None)
        if now is not before:
            return Change(f"{source.text}.{name}", value_text(before), value_text(now))
    return Change(source.text, "a function", value_text(found))


def _python(source: Source, operand: object, found: object, guards: GuardList) -> Change:
    if isinstance(operand, Flag):
        return Change(operand.subject, value_text(operand.value), value_text(operand.now()))
    fn, indices = operand[:2] if isinstance(operand, tuple) else (operand, ())
    names = ", ".join(guards.sources[i].text for i in indices)
    return Change(f"{getattr(fn, '__name__', value_text(fn))} ({names or source.text})", "True", "False")


_DESCRIBED: dict[int, Callable[..., Change]] = {
    native.MISSING: _missing,
    native.TYPE_IS: _type,
    native.LEN: _length,
    native.DICT_KEYS: _keys,
    native.HAS_KEY: _has,
    native.NOT_KEY: _has_not,
    native.TENSOR: _tensor,
    native.ALIASED: _alias,
    native.NOT_ALIASED: _no_alias,
    native.NONE_ALIASED: _none_alias,
    native.STATE: _state,
    native.MODULE: _module,
    native.FUNCTION: _function,
    native.NO_FINALIZER: _finalizer,
    native.PYTHON: _python,
}
"""Kind of a check -> the function (source, operand, found, guards) -> Change; operands are those of `native.Guards`.
"""
