"""Sums of exp(x - max(x)) without a separate pass: maximum and sum are folded in one loop over the row.

A walked row is read once for its maximum and once more for the sum, unless the sum is kept relative to the running
maximum: at each larger element the sum so far is scaled down (Milakov and Gimelshein, Online normalizer calculation for
softmax, 2018). Sums of this form are found by numbering the values that bodies compute (value numbering).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from smelt.codegen.phases import Phases
from smelt.loops.ir import Condition, Index, Ops, Pointwise, Reduction
from smelt.schedule.group import Member
from smelt.schedule.plan import Schedule
from smelt.shapes.expr import Expr, Runtime
from smelt.shapes.size import IntLike, Size


def online_sums(members: Mapping[str, Member], phases: Phases, plan: Schedule) -> dict[str, str]:
    """Returns for each maximum the sum to fold with it, if no other value needs a loop after the maximum's."""
    found: dict[str, str] = {}
    for phase in range(1, phases.count):
        rows, columns, stores = phases.roots(phase)
        pairs = {_maximum_of(member, members, plan): member.name for member in rows}
        alone = len(pairs) == len(rows) and not columns and not stores
        before = {member.name for member in phases.roots(phase - 1)[0]}
        if alone and all(name in before for name in pairs):
            found |= {name: total for name, total in pairs.items() if name is not None}
    return found


def _maximum_of(member: Member, members: Mapping[str, Member], plan: Schedule) -> str | None:
    """Returns the maximum by which the sum of exponentials is scaled, if a member is such a sum; else None."""
    node = member.node
    if not isinstance(node, Reduction) or node.kind != "sum" or node.dtype is not torch.float32:
        return None
    values = Values(members, plan)
    power = values.made[node.body(values, member.source)]
    if power[:2] != ("apply", "exp"):
        return None
    distance = values.made[power[-1]]
    if distance[:2] != ("apply", "sub"):
        return None
    x, fold = distance[-2:]
    name = values.made[fold][1] if values.made[fold][0] == "fold" else None
    if name is None:
        return None
    top = members[name].node
    if not isinstance(top, Reduction) or top.kind != "amax" or top.dtype is not torch.float32:
        return None
    return name if top.body(values, members[name].source) == x else None


class Values(Ops):
    """An `Ops` handler for value numbering: equal values have equal numbers. `made`: the key of each number."""

    def __init__(self, members: Mapping[str, Member], plan: Schedule) -> None:
        self.members, self.plan = members, plan
        self.numbers: dict[tuple[Hashable, ...], int] = {}
        self.made: list[tuple[Any, ...]] = []

    def value(self, *key: Hashable) -> int:
        """Returns the number of the value with this key."""
        if key not in self.numbers:
            self.numbers[key] = len(self.made)
            self.made.append(key)
        return self.numbers[key]

    def load(self, name: str, index: Index) -> int:
        node = self.plan.program.nodes[name]
        if name in self.members and isinstance(node, Reduction):
            return self.value("fold", name, index)
        if isinstance(node, Pointwise) and (name in self.members or name not in self.plan.stored):
            return int(node.body(self, index))
        return self.value("load", name, index)

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> int:
        return self.value("constant", repr(value), dtype)

    def integer(self, expr: Expr, dtype: torch.dtype) -> int:
        return self.value("integer", expr, dtype)

    def apply(self, op: str, dtype: torch.dtype, *args: int) -> int:
        return self.value("apply", op, dtype, *args)

    def convert(self, value: int, source: torch.dtype, target: torch.dtype) -> int:
        return value if source is target else self.value("convert", source, target, value)

    def masked(self, conditions: Sequence[Condition], body: Callable[[], int], other: int) -> int:
        return self.value("masked", tuple(conditions), body(), other)

    def indirect(self, value: int, size: IntLike, wrap: bool) -> Expr:
        return Expr(((Runtime(f"[{value} {wrap}]", size), 1),), 0)

    def random(self, seed: int, stream: int, index: Expr, count: IntLike) -> int:
        return self.value("random", seed, stream, index, repr(count))
