"""Chooses by a minimum cut which forward values are kept for a backward.

Each value that the backward may read is an edge whose capacity is the cost of keeping the value. A second edge, from
the source, has the cost of recomputing it (`recompute.py` defines both costs). Dinic's algorithm (native/flow.c) finds
the minimum cut that is nearest to the backward.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch.fx import Node

from smelt.autograd import _native
from smelt.autograd.partition.recompute import Costs, is_heavy, never_twice, saved_bytes

_BUDGET_STEPS = 10
_UNITS = 2**52  # upper bound of the sum of finite capacities, which are 64-bit integers
_INFINITE = 2**60


@dataclass(frozen=True)
class Cut:
    """The choice of the early values that are saved for one backward, as a minimum-cut problem.

    Attributes:
        early: nodes that the gradients need and that do not depend on tangents, in graph order.
        forward: nodes that the forward computes in any case.
        read: those of `early` that are operands of nodes that depend on tangents.
        results: the values that the forward returns.
            inputs: the inputs of the forward.
            costs: the costs of the graph's values.
    """

    early: Sequence[Node]
    forward: Collection[Node]
    read: Collection[Node]
    results: Collection[Node]
    inputs: Collection[Node]
    costs: Costs

    def choose(self, budget: float) -> list[Node]:
        """Returns the values to save, in graph order."""
        if not self.early:
            return []
        keep = [math.inf if self._inside(n) else self.costs.keep(n) for n in self.early]
        recompute_costs = [self.costs.recompute_cost(n) if n in self.forward else 0.0 for n in self.early]
        fastest = self._cut(keep, self._penalties(recompute_costs, heavy=math.inf))
        if budget >= 1.0:
            return fastest
        least = self._cut(keep, self._penalties([0.0] * len(recompute_costs)))
        target = saved_bytes(least) + budget * (saved_bytes(fastest) - saved_bytes(least))
        return self._within(target, keep, recompute_costs, fastest, least)

    def _penalties(self, recompute_costs: Sequence[float], heavy: float | None = None) -> list[float]:
        """Returns the recompute costs of `early`; infinite for nodes that must not be recomputed, and `heavy`, if
        given, for those that should not be.
        """
        penalties = []
        for node, cost in zip(self.early, recompute_costs, strict=True):
            if node.op == "placeholder" and node in self.inputs:
                cost = math.inf  # the node is not recomputed, even if the forward does not read it
            elif node in self.forward:
                if node.op != "call_function" or never_twice(node):
                    cost = math.inf
                elif "checkpoint" in node.meta:
                    cost = min(cost, 1.0)  # the program requests recomputation
                elif heavy is not None and is_heavy(node):
                    cost = heavy
            penalties.append(cost)
        return penalties

    def _inside(self, node: Node) -> bool:
        """Whether a value is internal to a `checkpoint` call and not a result of the call."""
        region = node.meta.get("checkpoint")
        if region is None or node.op != "call_function" or never_twice(node) or node in self.results:
            return False
        users = (user for user in node.users if user in self.forward)
        return all(user.meta.get("checkpoint") == region for user in users)

    def _within(
        self,
        target: float,
        keep: Sequence[float],
        recompute_costs: Sequence[float],
        fastest: list[Node],
        least: list[Node],
    ) -> list[Node]:
        """Returns the fastest cut that saves at most `target` bytes, found by scaling down the recompute costs."""
        if saved_bytes(fastest) <= target:
            return fastest
        best, low, high = least, -14.0, 3.0  # bounds of the scale's binary logarithm
        for _ in range(_BUDGET_STEPS):
            middle = (low + high) / 2
            found = self._cut(keep, self._penalties([c * 2.0**middle for c in recompute_costs]))
            if saved_bytes(found) <= target:
                best, low = found, middle
            else:
                high = middle
        return best

    def _cut(self, keep: Sequence[float], recompute_costs: Sequence[float]) -> list[Node]:
        """Returns the early nodes that the minimum cut saves, given these costs."""
        count = len(self.early)
        source, sink = 2 * count, 2 * count + 1
        number = {node: i for i, node in enumerate(self.early)}
        tails, heads, costs = [], [], []

        def edge(tail: int, head: int, cost: float) -> None:
            tails.append(tail)
            heads.append(head)
            costs.append(cost)

        for i, node in enumerate(self.early):
            edge(2 * i, 2 * i + 1, keep[i])
            if recompute_costs[i] > 0:
                edge(source, 2 * i, recompute_costs[i])
            for user in node.users:
                j = number.get(user)
                if j is not None:
                    edge(2 * i + 1, 2 * j, math.inf)
            if node in self.read:
                edge(2 * i + 1, sink, math.inf)
        ends = array("i", tails), array("i", heads)
        reaches = _native.minimum_cut(*ends, _capacities(costs), sink + 1, source, sink)
        return [n for i, n in enumerate(self.early) if reaches[2 * i + 1] and not reaches[2 * i]]


def _capacities(costs: Sequence[float]) -> array[int]:
    """Returns costs as 64-bit integers of at least 1, scaled so that the sum of all finite costs is less than
    infinity.
    """
    total = sum(cost for cost in costs if cost != math.inf)
    scale = min(1.0, _UNITS / total) if total else 1.0
    return array("q", [_INFINITE if cost == math.inf else max(int(cost * scale), 1) for cost in costs])
