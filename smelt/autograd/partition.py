"""Joint prim graph in; forward and backward prim graphs out. Chooses what to save and what to recompute.

The choice is a minimum cut. Every value that backward may read is an edge whose capacity is the cost of keeping
it; a second edge, from the source, is the cost of computing it again (`recompute` has both). The cut nearest to
backward of the cheapest ones is taken, by Dinic's algorithm (native/flow.c).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx
from torch.fx import Node

from smelt.autograd import _native
from smelt.autograd.joint import Joint
from smelt.autograd.recompute import Costs, is_heavy, never_twice, saved_bytes
from smelt.autograd.split import dependents
from smelt.base.options import Options
from smelt.graph.module import Graph, GraphModule

_BUDGET_STEPS = 10
_UNITS = 2**52  # all finite capacities together, in 64-bit integers
_INFINITE = 2**60


@dataclass(frozen=True)
class Saved:
    """One value that forward hands to backward.

    Attributes:
        kind: an input of forward, one of its outputs for the caller, or neither.
        index: position among inputs or outputs; -1 for an intermediate.
        name: the node's name.
    """

    kind: Literal["input", "output", "intermediate"]
    index: int
    name: str


def partition(module: fx.GraphModule, joint: Joint, options: Options) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """(forward, backward); backward is None when nothing is differentiable.

    Forward: primals (and seeds) in; the joint graph's forward outputs, then the saved values, out. Its
    `meta["saved"]` holds a Saved for each. Backward: saved values, then tangents in; gradients out.

    Args:
        module: the prim graph of the joint graph: same placeholders, same outputs.
        joint: says how many of them belong to forward.
        options: `activation_memory_budget` 1 weighs speed and memory; less recomputes more, down to 0,
            which keeps inputs and what cannot be computed twice.
    """
    if not joint.differentiable:
        module.meta["saved"] = []
        return module, None
    split = _Split(module, joint)
    saved = split.choose(options.activation_memory_budget)
    return split.forward(saved), split.backward(saved)


class _Split:
    """The joint graph with what the cut needs to know about it."""

    def __init__(self, module: fx.GraphModule, joint: Joint) -> None:
        self.module = module
        self.nodes: list[Node] = list(module.graph.nodes)
        output = self.nodes[-1]
        inputs = [n for n in self.nodes if n.op == "placeholder"]
        count, last = joint.num_primals + len(joint.seeds), len(inputs) - len(joint.sizes)
        self.inputs, self.tangents, self.sizes = inputs[:count], inputs[count:last], inputs[last:]
        results = joint.parts(output.args[0])  # type: ignore[arg-type]
        self.values: Sequence[Node] = results[0]
        self.gradients: Sequence[Node | None] = results[1]
        self.found: Sequence[Node] = results[2]
        self.reads = self.found[: len(joint.reads)]
        self.value_metas, self.gradient_metas, self.found_metas = joint.parts(output.meta["val"])
        self.late = dependents(self.nodes, self.tangents)
        self.needed_forward = _ancestors([*_nodes(self.values), *self.found])
        needed = _ancestors(_nodes(self.gradients))
        self.early = [n for n in self.nodes if n in needed and n not in self.late]
        self.needed = needed
        self.direct = {g for g in _nodes(self.gradients) if g not in self.late}  # gradients that need no tangent
        self.results = set(_nodes(self.values))
        self.costs = Costs(self.nodes[:-1], self.needed_forward, _nodes(self.values))

    # -- choosing

    def choose(self, budget: float) -> list[Node]:
        """The values to save, in graph order."""
        if not self.early:
            return []
        keep = [math.inf if self._inside(n) else self.costs.keep(n) for n in self.early]
        again = [self.costs.again(n) if n in self.needed_forward else 0.0 for n in self.early]
        fastest = self._cut(keep, self._penalties(again, heavy=math.inf))
        if budget >= 1.0:
            return fastest
        least = self._cut(keep, self._penalties([0.0] * len(again)))
        target = saved_bytes(least) + budget * (saved_bytes(fastest) - saved_bytes(least))
        return self._within(target, keep, again, fastest, least)

    def _penalties(self, again: Sequence[float], heavy: float | None = None) -> list[float]:
        """Recompute costs, with what must not or (heavy) should not be computed twice made infinite."""
        penalties = []
        for node, cost in zip(self.early, again, strict=True):
            if node.op == "placeholder" and node in self.inputs:
                cost = math.inf  # also where forward itself does not read it
            elif node in self.needed_forward:
                if node.op != "call_function" or never_twice(node):
                    cost = math.inf
                elif "checkpoint" in node.meta:
                    cost = min(cost, 1.0)  # the program asked for it
                elif heavy is not None and is_heavy(node):
                    cost = heavy
            penalties.append(cost)
        return penalties

    def _inside(self, node: Node) -> bool:
        """Whether a value is inside of a `checkpoint` call, and no result of it."""
        region = node.meta.get("checkpoint")
        if region is None or node.op != "call_function" or never_twice(node) or node in self.results:
            return False
        users = (user for user in node.users if user in self.needed_forward)
        return all(user.meta.get("checkpoint") == region for user in users)

    def _within(
        self, target: float, keep: Sequence[float], again: Sequence[float], fastest: list[Node], least: list[Node]
    ) -> list[Node]:
        """The fastest cut that saves at most `target` bytes: recompute costs are scaled down until it fits."""
        if saved_bytes(fastest) <= target:
            return fastest
        best, low, high = least, -14.0, 3.0  # powers of two
        for _ in range(_BUDGET_STEPS):
            middle = (low + high) / 2
            found = self._cut(keep, self._penalties([c * 2.0**middle for c in again]))
            if saved_bytes(found) <= target:
                best, low = found, middle
            else:
                high = middle
        return best

    def _cut(self, keep: Sequence[float], again: Sequence[float]) -> list[Node]:
        """The early nodes to save under these costs."""
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
            if again[i] > 0:
                edge(source, 2 * i, again[i])
            read_late = False
            for user in node.users:
                j = number.get(user)
                if j is not None:
                    edge(2 * i + 1, 2 * j, math.inf)
                elif not read_late and user in self.needed and user in self.late:
                    read_late = True
            if read_late or node in self.direct:
                edge(2 * i + 1, sink, math.inf)
        ends = array("i", tails), array("i", heads)
        reaches = _native.minimum_cut(*ends, _capacities(costs), sink + 1, source, sink)
        return [n for i, n in enumerate(self.early) if reaches[2 * i + 1] and not reaches[2 * i]]

    # -- building the two graphs

    def forward(self, saved: Sequence[Node]) -> fx.GraphModule:
        results = [*self.values, *saved, *self.found]
        metas = (*self.value_metas, *(n.meta["val"] for n in saved), *self.found_metas)
        module = _extract(self.module, [*self.inputs, *self.sizes], results, metas, self.nodes)
        describe = self._describer()
        module.meta["saved"] = [describe(n) for n in saved]
        return module

    def backward(self, saved: Sequence[Node]) -> fx.GraphModule:
        late = (n for n in self.nodes if n in self.late)  # recomputed values then live briefly
        inputs = [*saved, *self.tangents, *self.sizes, *self.reads]
        return _extract(self.module, inputs, self.gradients, self.gradient_metas, late)

    def _describer(self) -> Callable[[Node], Saved]:
        inputs = {node: i for i, node in enumerate(self.inputs)}
        outputs = {node: i for i, node in reversed(list(enumerate(self.values)))}

        def describe(node: Node) -> Saved:
            if node in inputs:
                return Saved("input", inputs[node], node.name)
            if node in outputs:
                return Saved("output", outputs[node], node.name)
            return Saved("intermediate", -1, node.name)

        return describe


def _nodes(values: Iterable[object]) -> list[Node]:
    return [v for v in values if isinstance(v, Node)]


def _ancestors(roots: Iterable[Node]) -> set[Node]:
    """roots and everything they are computed from."""
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _capacities(costs: Sequence[float]) -> array[int]:
    """Costs as 64-bit integers, at least 1: finite ones are scaled so that all together are less than infinity."""
    total = sum(cost for cost in costs if cost != math.inf)
    scale = min(1.0, _UNITS / total) if total else 1.0
    return array("q", [_INFINITE if cost == math.inf else max(int(cost * scale), 1) for cost in costs])


def _extract(
    module: fx.GraphModule,
    inputs: Sequence[Node],
    results: Sequence[Node | None],
    metas: Sequence[object],
    leaders: Iterable[Node],
) -> fx.GraphModule:
    """The graph that makes results from inputs: `leaders` in their order, each right after what it still needs."""
    graph = Graph()
    env: dict[Node, Node] = {}
    for node in inputs:
        env[node] = graph.create_node("placeholder", node.name, (), {}, node.name)
        env[node].meta = dict(node.meta)
    wanted = _between(_nodes(results), env)
    for leader in [*leaders, *_nodes(results)]:
        if leader in wanted:
            _copy_with_operands(leader, graph, env)
    out = graph.output(tuple(None if r is None else env[r] for r in results))
    out.meta["val"] = tuple(metas)
    return GraphModule(module, graph)


def _copy_with_operands(node: Node, graph: fx.Graph, env: dict[Node, Node]) -> None:
    """Copy a node, after those of its operands that are not there yet."""
    stack = [node]
    while stack:
        node = stack[-1]
        waiting = [n for n in node.all_input_nodes if n not in env]
        if waiting and node not in env:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        if node not in env:
            env[node] = graph.node_copy(node, env.__getitem__)


def _between(results: Iterable[Node], given: Container[Node]) -> set[Node]:
    """What has to be computed for results when `given` is there."""
    found: set[Node] = set()
    stack = [r for r in results if r not in given]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(n for n in node.all_input_nodes if n not in given)
    return found
