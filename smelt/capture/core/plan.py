"""What one attempt to capture a frame may do. A failed attempt gives the plan of the next one, which is weaker.

Plans are ordered: a weaker one lacks a permission of the other, or has the same permissions and stops earlier. The
permissions are three switches and three finite sets (branches, numbers, functions of the program); a capture stops at
an instruction that it has reached. So every chain of weaker plans ends, and with it the sequence of attempts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smelt.capture.core.breaks import Break

Site = tuple[int, int]
"""An instruction: the identity of its code, and its index."""

Permission = Literal["symbols", "checks", "repeats"]
TO_THE_END = -1


@dataclass(frozen=True)
class CapturePlan:
    """The permissions of one attempt.

    Attributes:
        symbols: sizes and numbers that have changed between calls may be symbols; the graph may read numbers from
            tensors.
        checks: a branch that only raises may become a check of the graph.
        repeats: where the graph fails, its frame may be rerun in eager.
        refused: data-dependent branches that must not become nodes.
        pinned: instructions that need the value of a prologue number, which is then assumed and guarded.
        functions: identities of custom functions (their classes) that must not become nodes.
        reads_first: the graph reads a tensor's value that the program asks for, where it can; if False, a value that
            was the same at all calls so far is assumed and guarded first.
        stop_at: the instruction of the outermost frame, counted from its start, before which the attempt stops.
        cause: the break that makes it stop there.
        why: what failed in the attempt before.
    """

    symbols: bool = True
    checks: bool = True
    repeats: bool = True
    refused: frozenset[Site] = frozenset()
    pinned: frozenset[Site] = frozenset()
    functions: frozenset[int] = frozenset()
    reads_first: bool = True
    stop_at: int = TO_THE_END
    cause: Break | None = field(default=None, compare=False)
    why: str = field(default="", compare=False)

    # -- weaker plans -----------------------------------------------------------------------------------------------

    def without(self, permission: Permission, why: str) -> CapturePlan:
        """A plan to start over without `symbols`, `checks` or `repeats`."""
        return CapturePlan(
            symbols=self.symbols and permission != "symbols",
            checks=self.checks and permission != "checks",
            repeats=self.repeats and permission != "repeats",
            refused=self.refused,
            pinned=self.pinned,
            functions=self.functions,
            reads_first=False,
            why=why,
        )

    def without_functions(self, functions: frozenset[int], why: str) -> CapturePlan:
        """A plan to start over without these functions as nodes."""
        return replace(self.lasting(), functions=self.functions | functions, why=why)

    def assuming(self, why: str) -> CapturePlan:
        """A plan in which values are assumed and guarded before the graph reads them."""
        return replace(self, reads_first=False, why=why)

    def stopping(self, step: int, cause: Break | None) -> CapturePlan:
        """A plan in which the graph ends before this instruction, wherever the present plan ends."""
        return replace(self, stop_at=step, cause=cause, why="" if cause is None else cause.title)

    def avoiding(self, refused: Iterable[Site], pinned: Iterable[Site]) -> CapturePlan:
        """A plan without these branches as nodes, and with these numbers assumed."""
        return replace(self, refused=self.refused.union(refused), pinned=self.pinned.union(pinned))

    def lasting(self) -> CapturePlan:
        """The plan with which later captures at the same site begin: permissions that led to a failure stay
        withdrawn."""
        return replace(self, reads_first=True, stop_at=TO_THE_END, cause=None, why="")

    # -- their order ------------------------------------------------------------------------------------------------

    def is_weaker_than(self, other: CapturePlan) -> bool:
        """Whether the plan is strictly weaker: it has fewer permissions or, with the same ones, assumes sooner or stops
        earlier."""
        if self.lasting() != other.lasting():
            switches = self.symbols <= other.symbols and self.checks <= other.checks and self.repeats <= other.repeats
            sets = ((self.refused, other.refused), (self.pinned, other.pinned), (self.functions, other.functions))
            return switches and all(mine >= others for mine, others in sets)
        return (self.reads_first, self._end()) < (other.reads_first, other._end())

    def _end(self) -> float:
        return float("inf") if self.stop_at == TO_THE_END else self.stop_at

    def difference_from(self, before: CapturePlan) -> str:
        """Text that says which permissions of the previous plan this plan lacks, and why."""
        lost = [f"without {name}" for name in ("symbols", "checks", "repeats") if vars(self)[name] < vars(before)[name]]
        if self.refused > before.refused:
            lost.append(f"with {_counted(len(self.refused - before.refused), 'branch', 'branches')} less as nodes")
        if self.pinned > before.pinned:
            lost.append(f"with {_counted(len(self.pinned - before.pinned), 'number', 'numbers')} taken for granted")
        if self.functions > before.functions:
            lost.append(f"with {_counted(len(self.functions - before.functions), 'function', 'functions')} in eager")
        if self.stop_at not in (before.stop_at, TO_THE_END):
            lost.append(f"up to instruction {self.stop_at}")
        if self.reads_first < before.reads_first and not lost:
            lost.append("with values taken for granted")
        return ", ".join(lost) + (f", because {self.why}" if self.why else "")


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
