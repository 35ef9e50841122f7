"""The list of guards during a capture: fetches of values, and checks on them.

The interpreter adds guards while it interprets the frame; `finish` converts them for the C evaluator
(`_native.Guards`), and `lines` prints them as Python.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from smelt.base import torch_c
from smelt.base.class_tables import classes, isinstance
from smelt.base.text import on_one_line
from smelt.capture import _native as native
from smelt.capture.core.breaks import ROOT, At
from smelt.capture.core.interface import Args
from smelt.capture.core.sources import Source
from smelt.capture.guards.flag import Flag
from smelt.capture.guards.guard_text import TensorText, guard_text
from smelt.capture.guards.size_programs import size_program
from smelt.graph.ir.meta import meta_of
from smelt.shapes.size import substitute_names

Check = tuple[Source, int, Any]
"""(source, kind of the check, operand)"""


_BY_VALUE = classes(int, str, bool)


class SizeFact(NamedTuple):
    """A condition over sizes.

    Attributes:
        program: the steps that C evaluates; None if only Python can.
        text: Python expression over the names of the sizes.
        shown: the expression as the user would write it.
        reason: the user's line that needed it; "" if no line did.
    """

    program: tuple[int, ...] | None
    text: str
    shown: str
    reason: str


def _size_function(names: list[str], facts: Sequence[SizeFact]) -> object:
    """A function of the sizes `names` that returns whether all facts are true."""
    scope: dict[str, Any] = {}
    text = " and ".join(f"({fact.text})" for fact in facts)
    exec(f"def sizes({', '.join(names)}):\n    return {text}\n", scope)
    scope["sizes"].__name__ = " and ".join(fact.shown for fact in facts)
    scope["sizes"].facts = tuple(facts)
    scope["sizes"].reader_arguments = names, text  # from which an artefact rebuilds the function
    return scope["sizes"]


class GuardList:
    """Fetches and checks of one capture, without duplicates.

    Attributes:
        sources: the source of each fetch.
        fetches: each fetch as (index of its parent or -1, kind, key).
        joint_checks: for each condition on many values, the sources of the values.
        checks: (fetch index, kind, operand); a tensor guard's operand is the example tensor until `finish`.
        locations: for each check, the line of the user's code that needed it; `where()` returns the present line.
        blamed: the line, if any, that needs the checks which are added; empty: it is the present one.
        noted: if not None, a list that also collects all checks on values, including duplicates.
        hash_order: whether the program depends on the order of a set that differs between processes, or on a hash.
        instances: whether one of the tensors is an instance of a subclass, whose code guards must not call.
        address_order: whether it depends on one of objects whose hashes follow from their addresses.
    """

    def __init__(self, where: Callable[[], At | None] | None = None) -> None:
        self.sources: list[Source] = []
        self.checks: list[tuple[int, int, Any]] = []
        self.locations: list[At | None] = []
        self.noted: list[Check] | None = None
        self.blamed: tuple[At | None, ...] = ()
        self._where: Callable[[], At | None] = where or _nowhere
        self.hash_order = False
        self.address_order = self.instances = False
        self.fetches: list[tuple[int, int, Any]] = []
        self._by_source: dict[Source, int] = {}
        self._by_step: dict[tuple[Any, ...], int] = {}
        self._known: set[tuple[Any, ...]] = set()
        self._flags: set[tuple[Any, ...]] = set()
        self.joint_checks: dict[Callable[..., bool], list[Source]] = {}

    def fetch(self, source: Source) -> int:
        """The index of a source among the fetches; equal sources share one."""
        found = self._by_source.get(source)
        if found is not None:
            return found
        parent = -1 if source.base is None else self.fetch(source.base)
        key = source.key
        step = (parent, source.kind, id(type(key)), key if type(key) in _BY_VALUE else _key(key))
        index = self._by_step.get(step)
        if index is None:
            index = self._by_step[step] = len(self.fetches)
            self.fetches.append((parent, source.kind, key))
            self.sources.append(source)
        self._by_source[source] = index
        return index

    def has(self, source: Source) -> bool:
        """Whether the source is fetched, so that guards check the reads of its value."""
        return source in self._by_source

    def check(self, source: Source, kind: int, operand: object) -> None:
        """Add a check on the value of a source, unless it is there already."""
        if self.noted is not None:
            self.noted.append((source, kind, operand))
        self._add(self.fetch(source), kind, operand)

    def _add(self, index: int, kind: int, operand: object) -> None:
        by_value = kind == native.PYTHON or type(operand) in _BY_VALUE
        key = (index, kind, id(type(operand)), operand if by_value else id(operand))
        if key not in self._known:
            self._known.add(key)
            self.checks.append((index, kind, operand))
            at = self.blamed[0] if self.blamed else self._where()
            self.locations.append(None if at is not None and at.code.co_filename == ROOT else at)

    def same(self, a: Source, b: Source) -> None:
        """Guard that both sources give one object."""
        first, second = sorted((self.fetch(a), self.fetch(b)))
        if first != second:
            self._add(second, native.ALIASED, first)

    def different(self, a: Source, b: Source) -> None:
        """Guard that the sources give two objects."""
        first, second = sorted((self.fetch(a), self.fetch(b)))
        self._add(second, native.NOT_ALIASED, first)

    def all_different(self, sources: Iterable[Source]) -> None:
        """Guard that no two of the sources give the same object."""
        indices = tuple(sorted({self.fetch(source) for source in sources}))
        if len(indices) > 1:
            self._add(indices[-1], native.NONE_ALIASED, indices)

    def python(self, fn: Callable[..., bool], sources: Iterable[Source], shortcut: int | None = None) -> None:
        """Guard that `fn` of the values of these sources is true. Python evaluates it, which is slow: only for rare
        cases.

        `shortcut`: a sufficient condition that C evaluates first (`native.SHORT_...`).
        """
        indices = tuple(sorted({self.fetch(source) for source in sources}))
        self._add(indices[-1], native.PYTHON, (fn, indices) if shortcut is None else (fn, indices, shortcut))

    def joint_check(self, fn: Callable[..., bool], source: Source) -> None:
        """Add a source to those of `fn`. The guard calls `fn` once, with the values of all sources added for it, and
        requires that the result is true.
        """
        self.joint_checks.setdefault(fn, []).append(source)

    def sizes(
        self, names: dict[str, Source], equal: list[tuple[Source, Source]], conditions: list[tuple[str, str]]
    ) -> None:
        """Guard conditions over sizes.

        Args:
            names: symbol -> its source.
            equal: pairs of sizes that must be equal.
            conditions: (Python expression over the symbols, the user's line that needed it or "").
        """
        indices = tuple(sorted(set(map(self.fetch, (*names.values(), *itertools.chain(*equal))))))
        variable = {index: f"v{index}" for index in indices} | {self.fetch(s): name for name, s in names.items()}
        index_of = {variable[index]: i for i, index in enumerate(indices)}
        comparisons = [
            (f"{variable[self.fetch(a)]} == {variable[self.fetch(b)]}", f"{a.text} == {b.text}", "") for a, b in equal
        ]
        comparisons += [(c, substitute_names(c, _texts(names)), reason) for c, reason in conditions]
        facts = [SizeFact(size_program(text, index_of), text, shown, reason) for text, shown, reason in comparisons]
        in_c = [each for each in facts if each.program is not None]
        if in_c:
            program = tuple(itertools.chain.from_iterable(each.program or () for each in in_c))
            self._add(indices[-1], native.PYTHON, (_size_function([*index_of], in_c), indices, program))
        others = [each for each in facts if each.program is None]
        if others:
            self._add(indices[-1], native.PYTHON, (_size_function([*index_of], others), indices))

    def state(self, state: tuple[object, ...]) -> None:
        """Guard that the ambient modes (gradients, autocast ...) equal `state`, a result of `native.state()`."""
        self._add(-1, native.STATE, state)

    def flag(self, fn: Callable[..., object], args: Args, value: object) -> None:
        """Guard that a setting of the process or the thread, `fn(*args)`, stays the same."""
        call = (fn, *args)
        if call not in self._flags:
            self._flags.add(call)
            self._add(-1, native.PYTHON, Flag(fn, args, value))

    def finish(self, outputs: Iterable[int]) -> native.Guards:
        """The guards in the form that C evaluates; `outputs` are the fetches that residual code needs."""
        for fn, given in self.joint_checks.items():
            self.python(fn, given, getattr(fn, "shortcut", None))
        if self.instances:
            calls = [k == native.PYTHON and isinstance(o, tuple) for _, k, o in self.checks]
            self.checks = [
                (i, k, (_plainly(o[0]), *o[1:]) if called else o)
                for (i, k, o), called in zip(self.checks, calls, strict=True)
            ]
        specs: dict[Any, native.TensorSpec] = {}
        checks = [
            (index, kind, _shared(specs, _tensor_spec(operand)) if kind == native.TENSOR else operand)
            for index, kind, operand in self.checks
        ]
        guards = native.Guards(self.fetches, checks, list(outputs))
        # the fields for printing must not keep the capture or its tensors alive
        self._where = _nowhere
        self.checks = [(i, k, TensorText(_described(o)) if k == native.TENSOR else o) for i, k, o in self.checks]
        return guards

    def lines(self) -> list[str]:
        """Each check as a line of Python, with the user's line that needed it as a comment."""
        return [self.line(i) for i in range(len(self.checks))]

    def line(self, number: int, with_location: bool = True) -> str:
        """One check as a line of Python; if `with_location`, with the user's line that needed it as a comment."""
        index, kind, operand = self.checks[number]
        if kind == native.TENSOR and not isinstance(operand, str):
            operand = TensorText(_described(operand))
        text = guard_text(kind, self.sources[index] if index >= 0 else None, operand, self.sources)
        location = self.locations[number] if with_location else None
        return on_one_line(f"{text}  # {location}" if location is not None else text)


def _plainly(fn: Callable[..., bool]) -> Callable[..., bool]:
    """The function without calls of the `__torch_function__` of its arguments' classes."""

    @functools.wraps(fn)
    def run(*values: object) -> bool:
        with torch_c.without_torch_function():
            return fn(*values)

    return run


def _tensor_spec(operand: Any) -> native.TensorSpec:
    if isinstance(operand, torch.Tensor):
        return native.TensorSpec(operand)
    return native.TensorSpec(operand.tensor, shape=operand.shape, stride=operand.stride, order=operand.order)


def _shared(specs: dict[object, native.TensorSpec], spec: native.TensorSpec) -> native.TensorSpec:
    """The first of several equal specs. A model's hundreds of tensors have few different specs, and sharing them keeps
    those in the processor's caches."""
    return specs.setdefault((repr(spec), spec.keys, spec.raw), spec)


def _described(operand: Any) -> str:
    return str(meta_of(operand) if isinstance(operand, torch.Tensor) else operand.meta)


def _texts(names: dict[str, Source]) -> dict[str, str]:
    return {name: source.text for name, source in names.items()}


def _nowhere() -> None:
    return None


def _key(key: object) -> Any:
    plain = type(key) is tuple and all(type(item) is str for item in key)
    return key if plain else id(key)
