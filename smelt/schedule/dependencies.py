"""Finds what each node reads: its body is run with a handler that records loads, through every inlined value.

This is the first step of scheduling. An access is a buffer name and an index expression per dimension over loop
variables; two accesses touch the same element exactly when their expressions are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.loops.facts import COSTS, DIVISIONS
from smelt.loops.ir import REFUSE, Body, Condition, Index, LoopProgram, Pointwise
from smelt.shapes.expr import Atom, Expr, Runtime, Var, flat_index
from smelt.shapes.size import IntLike, Size, hint


def weight(op: str) -> int:
    """Returns the cost of one pointwise operation, in additions."""
    return COSTS.get(op, 1)


@dataclass(frozen=True)
class Access:
    """An access to element `index` of the buffer `name`."""

    name: str
    index: Index

    def digits(self, shape: Sequence[IntLike]) -> tuple[tuple[tuple[IntLike, Var], ...], IntLike] | None:
        """Returns the row-major offset in `shape`: its terms ((coefficient, variable), ...), smallest coefficient
        first, and its constant.

        The result is None if the offset is not linear in loop variables. Symbolic coefficients are ordered by the
        example's sizes.
        """
        flat = flat_index(self.index, row_major(shape))
        if not flat.is_linear():
            return None
        return tuple(sorted(((c, v) for v, c in flat.terms), key=lambda t: (hint(t[0]), t[1].name))), flat.const  # type: ignore[misc]


def row_major(shape: Sequence[IntLike]) -> tuple[IntLike, ...]:
    """Returns row-major strides."""
    strides: list[IntLike] = []
    step: IntLike = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size if isinstance(size, Size) else max(size, 1)
    return tuple(reversed(strides))


class Tracer:
    """An `Ops` handler that records the stored buffers that a body reads and its cost. Its values are None.

    With a `limit` it counts the evaluations of generated code: a value that was already computed under the conditions
    of a use, or under a subset of them, is not counted a second time.
    """

    def __init__(self, program: LoopProgram, stored: Collection[str], limit: float = math.inf) -> None:
        self.nodes, self.stored = program.nodes, stored
        self.reads: dict[Access, None] = {}
        self.index_values: dict[Expr, None] = {}
        self.cost = 0
        self.ops = 0
        self.checks = False
        self.limit = limit
        self.levels = 0
        self._level = 0
        self.evaluations = 0
        self._seen: dict[tuple[str, Index], list[frozenset[Any]]] = {}
        self._inside: frozenset[Any] = frozenset()

    def load(self, name: str, index: Index) -> Any:
        if name in self.stored:
            self.reads[Access(name, index)] = None
            return None
        seen = self._seen.setdefault((name, index), [])
        if self.evaluations <= self.limit and not any(conditions <= self._inside for conditions in seen):
            seen.append(self._inside)
            self.evaluations += 1
            node = self.nodes[name]
            assert isinstance(node, Pointwise), f"{name} has no buffer"
            self._level += 1
            self.levels = max(self.levels, self._level)
            node.body(self, index)
            self._level -= 1
        return None

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> Any:
        return value  # a division by a constant needs no check

    def integer(self, expr: Expr, dtype: torch.dtype) -> Any:
        self.index_values[expr] = None

    def apply(self, op: str, dtype: torch.dtype, *args: Any) -> Any:
        self.cost += weight(op)
        self.ops += 1
        divides = op in DIVISIONS and not dtype.is_floating_point
        by_number = divides and isinstance(args[1], int) and args[1] != 0
        self.checks = self.checks or op.startswith(REFUSE) or (divides and not by_number)

    def convert(self, value: Any, source: torch.dtype, target: torch.dtype) -> Any:
        self.cost += source is not target

    def masked(self, conditions: Sequence[Condition], body: Callable[[], Any], other: Any) -> Any:
        self.cost += 2
        tested = tuple(c for c in conditions if not c.holds_always())
        for condition in tested:
            self.index_values[condition.expr] = None
        around = self._inside
        if tested and self.limit < math.inf:
            self._inside = around | {tested}
        body()
        self._inside = around

    def indirect(self, value: Any, size: IntLike, wrap: bool) -> Expr:
        self.cost += 2
        self.checks = True
        return Expr(((Runtime(f"?{len(self.reads)}.{self.cost}", size), 1),), 0)

    def random(self, seed: Any, stream: int, index: Expr, count: IntLike) -> Any:
        self.cost += weight("random")
        self.index_values[index] = None


@dataclass
class Reads:
    """The reads and the cost of one evaluation of a body at `index`.

    `index_values`: index expressions used as numbers. `levels`: nesting depth of inlined bodies. `evaluations`: number
    of bodies that were run. `checks`: whether the body contains a check that may fail, such as one of an index's range.
    """

    accesses: tuple[Access, ...]
    index_values: tuple[Expr, ...]
    cost: int
    ops: int
    levels: int
    evaluations: int
    checks: bool


def trace(program: LoopProgram, stored: Collection[str], body: Body, index: Index, limit: float = math.inf) -> Reads:
    """Returns the reads of `body` at `index`; values outside `stored` are inlined, at most `limit` of them."""
    tracer = Tracer(program, stored, limit)
    body(tracer, index)
    return Reads(
        tuple(tracer.reads), tuple(tracer.index_values), tracer.cost, tracer.ops, 1 + tracer.levels, tracer.evaluations,
        tracer.checks,
    )  # fmt: skip


@dataclass
class Names:
    """A source of loop variables with names unique in one schedule."""

    count: int = 0
    made: list[Var] = field(default_factory=list)

    def fresh(self, size: IntLike) -> Var:
        """Make a new variable of this size."""
        self.count += 1
        var = Var(f"v{self.count}", size)
        self.made.append(var)
        return var


def operands_first(roots: Iterable[str], operands: Callable[[str], Iterable[str]]) -> list[str]:
    """Returns `roots` and their transitive operands, each once and after its operands (depth first, in order of
    operands).
    """
    done: dict[str, None] = {}
    open_ones = [(root, iter(operands(root))) for root in reversed(list(roots))]
    while open_ones:
        name, left = open_ones[-1]
        source = next((s for s in left if s not in done), None) if name not in done else None
        if source is None:
            open_ones.pop()
            done[name] = None
        else:
            open_ones.append((source, iter(operands(source))))
    return list(done)


def variables_in(index: Sequence[Expr]) -> set[Atom]:
    """Returns the loop variables that an index mentions."""
    return {atom for entry in index for atom in entry.atoms() if type(atom) is Var}
