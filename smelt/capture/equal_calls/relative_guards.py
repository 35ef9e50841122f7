"""The guards of one call on what is reached through its module, in a form that is checked and repeated for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core.breaks import At
from smelt.capture.core.sources import Source
from smelt.capture.core.values import is_constant
from smelt.capture.equal_calls.context import Indescribable

if TYPE_CHECKING:
    from smelt.capture.core.interface import Interpreter

_OF_MANY = frozenset({native.NOT_ALIASED, native.NONE_ALIASED, native.PYTHON})
"""Kinds of checks that relate several values."""


@dataclass(slots=True)
class Step:
    """A step of a path from the module.

    Attributes:
        parent: index of the previous step; -1 for the module itself.
        before, after: the text of the path is that of the module between these two.
    """

    parent: int
    kind: int
    key: object
    before: str
    after: str


@dataclass(slots=True)
class Check:
    """A check on the value of a step (-1: on the module).

    Attributes:
        operand: that of the guard; for `ALIASED` the index of another step.
        shared: the source of the object of which the value has to be; None for other checks.
    """

    step: int
    kind: int
    operand: object
    at: At | None
    shared: Source | None = None


class RelativeGuards:
    """The guards on what is reached through one module, from the whole capture so far.

    They hold everything that the captured code has read of the module. Code that reads another module for which they
    hold therefore does the same.

    Args:
        vm: the capture.
        module: the called module.
        source: its source.

    Attributes:
        steps: the paths from the module, parents first.
        checks: the checks, in order.

    Raises:
        Indescribable: the code has read more than the values of single paths, for example which of two objects it was
            given, or what other objects hold for the module.
    """

    def __init__(self, vm: Interpreter, module: nn.Module, source: Source) -> None:
        guards = vm.guards
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        self._index, self._module_text = {guards.fetch(source): -1}, source.text
        for fetch, (parent, _, _) in enumerate(guards.fetches):
            if parent in self._index:
                self._add_step(fetch, parent, guards.sources[fetch])
        self._evaluator = native.Guards(self._fetches(), (), range(1, len(self.steps) + 1))
        values = self._values(module)
        for (fetch, kind, operand), at in zip(guards.checks, guards.locations, strict=True):
            self._add_check(vm, fetch, kind, operand, at, values)
        self._refuse_comparisons(vm)
        shared = {check.step for check in self.checks if check.shared is not None}
        own = [value for step, value in enumerate(values) if step not in shared and _is_object(value)]
        self._refuse_mentions(vm, {id(module), *map(id, own)})
        evaluated = [(c.step + 1, c.kind, _operand(c)) for c in self.checks]
        self._evaluator = native.Guards(self._fetches(), evaluated, range(1, len(self.steps) + 1))
        self._values(module)

    def values(self, module: nn.Module) -> tuple[object, ...] | None:
        """The value of each step from another module of the class; None if one of the checks does not hold for it."""
        return self._evaluator.check([module], {}, None)

    def sources(self, source: Source) -> list[Source]:
        """The source of each step from another module, of which `source` is the one."""
        found: list[Source] = []
        for step in self.steps:
            base = source if step.parent < 0 else found[step.parent]
            found.append(Source(base, step.kind, step.key, f"{step.before}{source.text}{step.after}"))
        return found

    def are_new(self, vm: Interpreter, values: Sequence[object], sources: Sequence[Source]) -> bool:
        """Whether no value of another module is known by another path than the recorded one's, as tied weights are."""
        fixed = {check.step for check in self.checks if check.shared is not None or check.kind == native.ALIASED}
        for step, value in enumerate(values):
            known = vm.sources.get(id(value)) if step not in fixed else None
            if known is not None and vm.guards.fetch(known) != vm.guards.fetch(sources[step]):
                return False
        return True

    def covers(self, vm: Interpreter, source: Source) -> bool:
        """Whether the source leads through the module."""
        return vm.guards.fetch(source) in self._index

    def registered(self, vm: Interpreter, objects: Iterable[object], module: nn.Module) -> list[int]:
        """The steps whose values are among these external objects, but for tensors."""
        values, found = self._values(module), []
        for each in objects:
            source = vm.sources.get(id(each))
            step = self._index.get(vm.guards.fetch(source), -1) if source is not None and vm.guards.has(source) else -1
            if step >= 0 and values[step] is each and not isinstance(each, torch.Tensor):
                found.append(step)
        return found

    def _values(self, module: nn.Module) -> tuple[object, ...]:
        values = self.values(module)
        if values is None:
            raise Indescribable
        return values

    def _fetches(self) -> list[tuple[int, int, object]]:
        return [(-1, native.LOCAL, 0), *((step.parent + 1, step.kind, step.key) for step in self.steps)]

    def _add_step(self, fetch: int, parent: int, source: Source) -> None:
        if source.base is None or source.kind == native.CALL:  # a call may run code of the program
            raise Indescribable
        before, found, after = source.text.partition(self._module_text)
        if not found:
            raise Indescribable
        self._index[fetch] = len(self.steps)
        self.steps.append(Step(self._index[parent], source.kind, source.key, before, after))

    def _add_check(
        self, vm: Interpreter, fetch: int, kind: int, operand: object, at: At | None, values: Sequence[object]
    ) -> None:
        step = self._index.get(fetch)
        if kind == native.ALIASED:
            other = self._index.get(operand) if type(operand) is int else None
            if step is not None and other is not None:
                self.checks.append(Check(step, kind, other, at))
            elif other is not None or step == -1:
                raise Indescribable  # another path leads to the module, or to one of its own objects
            elif step is not None and type(operand) is int:
                self.checks.append(Check(step, native.IS, values[step], at, vm.guards.sources[operand]))
        elif step is not None:
            if kind in _OF_MANY or kind == native.TENSOR and not isinstance(operand, torch.Tensor):
                raise Indescribable
            self.checks.append(Check(step, kind, operand, at))

    def _refuse_comparisons(self, vm: Interpreter) -> None:
        """Require that no condition relates an object of the module to another one, and that no number is an input."""
        guards = vm.guards
        related = [*vm.compared.sources, *(each for some in guards.joint_checks.values() for each in some)]
        related += [*vm.sizes.reals.values(), *(source for source, _, _ in vm.sizes.occurrences)]
        fetches = {guards.fetch(source) for source in related}
        for fetch, kind, operand in guards.checks:
            if kind in _OF_MANY:
                fetches |= {fetch, *_indices(kind, operand)}
        if not fetches.isdisjoint(self._index):
            raise Indescribable

    def _refuse_mentions(self, vm: Interpreter, own: set[int]) -> None:
        """Require that no guard on another object names an object of the module, as the guard on a dictionary's key."""
        guards = vm.guards
        keys = (key for fetch, (_, _, key) in enumerate(guards.fetches) if fetch not in self._index)
        operands = (
            operand for fetch, kind, operand in guards.checks if fetch not in self._index and kind not in _OF_TENSORS
        )
        for value in _named(keys, operands):
            if id(value) in own:
                raise Indescribable


_OF_TENSORS = frozenset({native.TENSOR, native.STATE})


def _is_object(value: object) -> bool:
    return value is not native.NULL and not is_constant(value)


def _operand(check: Check) -> object:
    if check.kind == native.TENSOR:
        return native.TensorSpec(check.operand)
    if check.kind == native.ALIASED and type(check.operand) is int:
        return check.operand + 1
    return check.operand


def _indices(kind: int, operand: object) -> Iterable[int]:
    """The fetches that a check relates to its own one."""
    if kind == native.NOT_ALIASED:
        return (operand,) if type(operand) is int else ()
    indices = operand if kind == native.NONE_ALIASED else operand[1] if type(operand) is tuple else ()
    return indices if type(indices) is tuple else ()


def _named(*groups: Iterable[object]) -> Iterator[object]:
    """The values, with the items of tuples and the arguments of calls that guards repeat."""
    for group in groups:
        for value in group:
            yield value
            if type(value) is tuple:
                yield from _named(value)
            elif hasattr(value, "args") and type(value.args) is tuple:
                yield from _named(value.args)
