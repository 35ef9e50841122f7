"""What a machine can do at most, and the shortest time that it needs for a kernel: the roofline model.

The model is that of S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52 (2009): a kernel takes at least the time in which memory moves
its bytes, and at least the time in which the arithmetic units do its operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from smelt.abi.program_facts import ProgramFacts, Unit

Resource = Literal["memory", "arithmetic"]


@dataclass(frozen=True)
class Bound:
    """The shortest time of a kernel in seconds, and the resource that needs this time."""

    seconds: float
    resource: Resource


@dataclass(frozen=True)
class Ceilings:
    """The measured maximum speeds of one machine.

    Attributes:
        machine: the processor or GPU and, of a processor, the number of threads.
        bandwidths: (bytes that a kernel moves, bytes per second), in ascending order of size and descending order of
            speed: small kernels find their data in caches.
        products: operations per second of a large matrix product, by dtype of the operands; "tf32" are float32 operands
            that are rounded to TF32.
        pointwise: operations per second outside of matrix products: the rate of float32 products without TF32.
    """

    machine: str
    bandwidths: tuple[tuple[int, float], ...]
    products: dict[str, float]
    pointwise: float

    def bandwidth(self, moved: int) -> float:
        """Bytes per second for a kernel that moves this many bytes: the speed of the next smaller measured size."""
        speed = self.bandwidths[0][1]
        for size, measured in self.bandwidths:
            if size <= moved:
                speed = measured
        return speed

    def arithmetic(self, dtype: str) -> float:
        """Operations per second of units whose `Unit.dtype` is this one; of a dtype that was not measured, the fastest
        one's.
        """
        if not dtype:
            return self.pointwise
        return self.products.get(dtype) or max(self.products.values())

    def bound(self, unit: Unit) -> Bound:
        """The shortest time of one call of a kernel or library call."""
        moved = unit.bytes_read + unit.bytes_written
        memory, arithmetic = moved / self.bandwidth(moved), unit.flops / self.arithmetic(unit.dtype)
        return Bound(memory, "memory") if memory >= arithmetic else Bound(arithmetic, "arithmetic")


@dataclass(frozen=True)
class ProgramBound:
    """How near a program is to the machine's limit, in seconds per call.

    Attributes:
        limit: sum of the shortest times of its units.
        memory, arithmetic: the parts of `limit` that are bound by each resource.
        units: sum of the shortest measured times of its units; 0: not measured.
        whole: shortest measured time of a whole call; 0: not measured.
    """

    limit: float
    memory: float
    arithmetic: float
    units: float
    whole: float

    @property
    def seconds(self) -> float:
        """The time of a call: measured as a whole, else the sum of its units."""
        return self.whole or self.units

    @property
    def share(self) -> float:
        """The limit as a share of the measured time; 0: not measured."""
        return self.limit / self.seconds if self.seconds else 0.0

    @property
    def between(self) -> float:
        """Time of a whole call in which no unit runs: launches, allocations, checks of the host program."""
        return max(self.whole - self.units, 0.0) if self.whole and self.units else 0.0


def bound_of_program(program: ProgramFacts, ceilings: Ceilings) -> ProgramBound:
    """Compare the measured times of a program with the machine's limits."""
    bounds = [ceilings.bound(unit) for unit in program.units]
    whole = program.timing.least_ns / 1e9 if program.timing is not None else 0.0
    memory = sum(each.seconds for each in bounds if each.resource == "memory")
    limit = sum(each.seconds for each in bounds)
    return ProgramBound(limit, memory, limit - memory, seconds_of(program.units), whole)


def seconds_of(units: Iterable[Unit]) -> float:
    """Sum of the shortest measured times of units, in seconds. Units that one step computes are counted once."""
    steps = {id(unit.step): unit.step for unit in units}
    return sum(step.timing.least_ns for step in steps.values() if step.timing is not None) / 1e9
