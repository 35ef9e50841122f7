"""The steps of a host program as people see them: launches of kernels and calls of libraries, with the user's lines.

Codegen writes them beside the text; the runtime shows them to profilers while somebody looks.
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
    """An operation of the user's program that a step computes something of.

    Attributes:
        at: its location; `str(at)` is "file:line". None: not known.
        name: of its node in the captured graph.
        backward: the step computes of its derivative.
    """

    at: object
    name: str
    backward: bool = False

    @property
    def operator(self) -> str:
        """The name without the number that tells nodes apart."""
        return _NUMBERS.sub("", self.name) or self.name


@dataclass(slots=True)
class Timing:
    """How long a step took, in nanoseconds, and how often it ran."""

    calls: int = 0
    total_ns: int = 0
    least_ns: int = 0

    def add(self, ns: int) -> None:
        """It ran once more."""
        self.least_ns = ns if not self.calls else min(self.least_ns, ns)
        self.calls += 1
        self.total_ns += ns


@dataclass(slots=True)
class Step:
    """One launch or call.

    Attributes:
        slot: of a kernel in C++, where the table has its address.
        arguments: of such a kernel in order: a number, or (slot, bytes) for what the slot holds and so much more.
        timing: None: nobody asks.
    """

    origins: tuple[Origin, ...]
    slot: int = 0
    arguments: tuple[tuple[int, int] | int, ...] = ()
    timing: Timing | None = None

    @property
    def label(self) -> str:
        """What profilers show: `smelt: model.py:42 relu+add`."""
        return f"smelt: {label(self.origins)}"


@dataclass
class Steps:
    """Those of one host program, by the names that its text has for them."""

    externs: dict[str, Step] = field(default_factory=dict)
    segments: dict[str, list[Step]] = field(default_factory=dict)
    products: dict[str, Step] = field(default_factory=dict)
    of: dict[str, Step] = field(default_factory=dict)
    """By the first value that they make."""

    def all(self) -> list[Step]:
        """In no particular order."""
        launches = [step for steps in self.segments.values() for step in steps]
        return [*self.externs.values(), *launches, *self.products.values()]


MOST_LINES, MOST_OPERATORS = 3, 6
"""Lines in a label, and operators of each."""


def label(origins: Sequence[Origin]) -> str:
    """Lines with the operators of each: `model.py:42 relu+add, model.py:43 mul backward`."""
    by_line: dict[tuple[str, bool], list[str]] = {}
    for origin in origins:
        location = "" if origin.at is None else os.path.basename(str(origin.at))
        operators = by_line.setdefault((location, origin.backward), [])
        if origin.operator not in operators:
            operators.append(origin.operator)
    shown = []
    for (location, backward), operators in list(by_line.items())[:MOST_LINES]:
        names = "+".join(operators[:MOST_OPERATORS]) + ("+..." if len(operators) > MOST_OPERATORS else "")
        shown.append(" ".join(filter(None, (location, names, "backward" if backward else ""))))
    if len(by_line) > MOST_LINES:
        shown.append(f"{len(by_line) - MOST_LINES} more")
    return ", ".join(shown)


class Observable(Protocol):
    """A loaded program."""

    def observe(self) -> None:
        """Show its steps one by one from now on, as long as a profiler is on."""


_programs: weakref.WeakSet[Observable] = weakref.WeakSet()
_lock = new_lock()


def observable(program: Observable) -> None:
    """A program was loaded."""
    with _lock:
        _programs.add(program)


def observe_programs() -> None:
    """A profiler is on: whatever runs is shown step by step."""
    with _lock:
        programs = list(_programs)
    for program in programs:
        program.observe()
