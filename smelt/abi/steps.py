"""The steps of a host program, for profilers: launches of kernels and library calls, with the user's lines.

Codegen makes them along with the host program's text; the runtime reports them while a profiler is active.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from smelt.base.locks import new_lock

_NUMBERS = re.compile(r"(_\d+)+$")


@dataclass(frozen=True, slots=True)
class Origin:
    """An operation of the user's program that a step computes, entirely or partly.

    Attributes:
        at: location of the operation; `str(at)` is "file:line". None: not known.
        name: name of its node in the captured graph.
        backward: whether the step computes its derivative.
    """

    at: object
    name: str
    backward: bool = False

    @property
    def operator(self) -> str:
        """The node's name without the number that makes it unique."""
        return _NUMBERS.sub("", self.name) or self.name


@dataclass(slots=True)
class Timing:
    """The total time of a step in nanoseconds, and the number of its runs."""

    calls: int = 0
    total_ns: int = 0
    least_ns: int = 0

    def add(self, ns: int) -> None:
        """Add one run."""
        self.least_ns = ns if not self.calls else min(self.least_ns, ns)
        self.calls += 1
        self.total_ns += ns


@dataclass(slots=True)
class Step:
    """One launch or call of a host program.

    Attributes:
        slot: position of a C++ kernel in the table of addresses.
        arguments: arguments of a C++ kernel, in order: a number, or (slot, bytes), which is the pointer in the slot
            plus these bytes.
        timing: total time of the step; None: not measured.
    """

    origins: tuple[Origin, ...]
    slot: int = 0
    arguments: tuple[tuple[int, int] | int, ...] = ()
    timing: Timing | None = None

    @property
    def label(self) -> str:
        """The label in a profile: `smelt: model.py:42 relu+add`."""
        return f"smelt: {label(self.origins)}"


@dataclass
class Steps:
    """The steps of one host program, by their names in its text."""

    externs: dict[str, Step] = field(default_factory=dict)
    segments: dict[str, list[Step]] = field(default_factory=dict)
    products: dict[str, Step] = field(default_factory=dict)
    of: dict[str, Step] = field(default_factory=dict)
    """Step by the first value that it makes."""
    timing: Timing | None = None
    """Time of whole calls; None: not measured."""

    def all(self) -> list[Step]:
        """Returns all steps, in no particular order."""
        launches = [step for steps in self.segments.values() for step in steps]
        return [*self.externs.values(), *launches, *self.products.values()]


MAX_LINES, MAX_OPERATORS = 3, 6
"""Maximum number of lines in a label, and of operators per line."""


def label(origins: Sequence[Origin]) -> str:
    """Returns the user's lines, each with its operators: `model.py:42 relu+add, model.py:43 mul backward`."""
    by_line: dict[tuple[str, bool], list[str]] = {}
    for origin in origins:
        location = "" if origin.at is None else os.path.basename(str(origin.at))
        operators = by_line.setdefault((location, origin.backward), [])
        if origin.operator not in operators:
            operators.append(origin.operator)
    shown = []
    for (location, backward), operators in list(by_line.items())[:MAX_LINES]:
        names = "+".join(operators[:MAX_OPERATORS]) + ("+..." if len(operators) > MAX_OPERATORS else "")
        shown.append(" ".join(filter(None, (location, names, "backward" if backward else ""))))
    if len(by_line) > MAX_LINES:
        shown.append(f"{len(by_line) - MAX_LINES} more")
    return ", ".join(shown)


class Observable(Protocol):
    """A loaded program whose steps a profiler can show."""

    def observe(self) -> None:
        """Report each step separately while a profiler is active."""


_programs: weakref.WeakSet[Observable] = weakref.WeakSet()
_lock = new_lock()


def observable(program: Observable) -> None:
    """Register a program that was loaded."""
    with _lock:
        _programs.add(program)


def observe_programs() -> None:
    """Make all loaded programs report their steps, because a profiler is active."""
    with _lock:
        programs = list(_programs)
    for program in programs:
        program.observe()
