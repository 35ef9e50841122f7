"""Capture plans: the permissions of one attempt to capture a frame. A failed attempt leads to a weaker plan.

Plans are ordered: a weaker plan lacks a permission of the other, or has the same permissions and assumes values sooner
or stops earlier. The permissions are four switches and three finite sets (branches, numbers, functions of the
program), and a capture stops only at an instruction that it has reached. Therefore every chain of weaker plans is
finite, and so is the sequence of attempts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smelt.capture.core.breaks import Break

Site = tuple[int, int]
"""An instruction: (id of its code object, index)."""

Permission = Literal["symbols", "checks", "repeats", "copies"]
_SWITCHES: tuple[Permission, ...] = ("symbols", "checks", "repeats", "copies")
TO_THE_END = -1


@dataclass(frozen=True)
class CapturePlan:
    """The permissions of one attempt.

    Attributes:
        symbols: sizes and numbers that have changed between calls may be symbols; the graph may read numbers from
            tensors.
        checks: a branch that only raises may become a check of the graph.
        repeats: if the graph raises an error, its frame may be rerun in eager.
        copies: calls of equal modules may be copied from earlier ones.
        refused: data-dependent branches that must not become nodes of the graph.
        pinned: instructions that need the value of a prologue number, which is then assumed and guarded.
        functions: identities of classes of custom autograd functions that must not become nodes of the graph.
        reads_first: the graph reads a tensor's value that the program needs, if it can; if False, a value that was the
            same at all calls so far is assumed and guarded instead.
        stop_at: the instruction of the outermost frame, counted from its start, before which the attempt stops.
        cause: the break at `stop_at`.
        why: the failure of the previous attempt.
    """

    symbols: bool = True
    checks: bool = True
    repeats: bool = True
    copies: bool = True
    refused: frozenset[Site] = frozenset()
    pinned: frozenset[Site] = frozenset()
    functions: frozenset[int] = frozenset()
    reads_first: bool = True
    stop_at: int = TO_THE_END
    cause: Break | None = field(default=None, compare=False)
    why: str = field(default="", compare=False)

    # -- weaker plans -----------------------------------------------------------------------------------------------

    def without(self, permission: Permission, why: str) -> CapturePlan:
        """A plan to start over without one of the permissions."""
        return CapturePlan(
            symbols=self.symbols and permission != "symbols",
            checks=self.checks and permission != "checks",
            repeats=self.repeats and permission != "repeats",
            copies=self.copies and permission != "copies",
            refused=self.refused,
            pinned=self.pinned,
            functions=self.functions,
            reads_first=False,
            why=why,
        )

    def without_functions(self, functions: frozenset[int], why: str) -> CapturePlan:
        """A plan to start over in which these functions do not become nodes."""
        return replace(self.lasting(), functions=self.functions | functions, why=why)

    def assuming(self, why: str) -> CapturePlan:
        """A plan in which values are assumed and guarded before the graph reads them."""
        return replace(self, reads_first=False, why=why)

    def stopping(self, step: int, cause: Break | None) -> CapturePlan:
        """A plan in which the graph ends before instruction `step`, whichever `stop_at` the present plan has."""
        return replace(self, stop_at=step, cause=cause, why="" if cause is None else cause.title)

    def avoiding(self, refused: Iterable[Site], pinned: Iterable[Site]) -> CapturePlan:
        """A plan in which these branches do not become nodes, and these prologue numbers are assumed."""
        return replace(self, refused=self.refused.union(refused), pinned=self.pinned.union(pinned))

    def lasting(self) -> CapturePlan:
        """The plan of the first attempt of later captures at the same site: permissions that led to a failure stay
        withdrawn."""
        return replace(self, reads_first=True, stop_at=TO_THE_END, cause=None, why="")

    # -- their order ------------------------------------------------------------------------------------------------

    def is_weaker_than(self, other: CapturePlan) -> bool:
        """Whether the plan is strictly weaker: it has fewer permissions, or the same ones and assumes sooner or stops
        earlier."""
        if self.lasting() != other.lasting():
            switches = all(vars(self)[name] <= vars(other)[name] for name in _SWITCHES)
            sets = ((self.refused, other.refused), (self.pinned, other.pinned), (self.functions, other.functions))
            return switches and all(mine >= others for mine, others in sets)
        return (self.reads_first, self._end()) < (other.reads_first, other._end())

    def _end(self) -> float:
        return float("inf") if self.stop_at == TO_THE_END else self.stop_at

    def difference_from(self, before: CapturePlan) -> str:
        """Text that lists the permissions of the previous plan that this plan lacks, with the reason."""
        lost = [f"without {name}" for name in _SWITCHES if vars(self)[name] < vars(before)[name]]
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
