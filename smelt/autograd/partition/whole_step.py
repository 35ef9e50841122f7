"""Recomputation within the graph of a whole training step, which has no separate backward program.

In such a graph nothing separates forward and backward. Fusion would let the forward's kernels, which already read the
operands, compute values that only the backward needs, and the results would stay in memory, in full precision, until
the backward reads them. So each backward of the graph gets copies of the nodes that the minimum cut decides to
recompute. A copy reads the same buffers as the original, and fusion would merge the two; to prevent this,
`node.meta["after"]` of the copy names a gradient that the copy's first reader reads as well: the copy is not computed
before that gradient exists.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import fx
from torch.fx import Node

from smelt.autograd.partition.min_cut import Cut
from smelt.autograd.partition.recompute import FREE, Costs, kind_of, nbytes
from smelt.graph.ir.ancestry import ancestors, dependents
from smelt.graph.ir.module import Graph, GraphModule, remove_dead

MAX_KEPT_BYTES = 1 << 16
"""Maximum number of bytes of a value that is always kept: recomputing it would mainly cost the launch of a kernel."""


def with_recomputation(module: fx.GraphModule, budget: float) -> fx.GraphModule:
    """Returns the graph, in which each backward recomputes forward values from copies of their nodes; `module` itself
    if there is no backward.

    Args:
        module: a prim graph; `meta["derivative"]` of a node is the number of the backward to which it belongs.
        budget: the option `activation_memory_budget`.
    """
    for number in sorted({n.meta["derivative"] for n in module.graph.nodes if "derivative" in n.meta}):
        module = _recomputed(module, number, budget)
    return module


def _is_always_kept(node: fx.Node) -> bool:
    return node.op != "call_function" or 0 < nbytes(node.meta["val"]) <= MAX_KEPT_BYTES


def _recomputed(module: fx.GraphModule, number: int, budget: float) -> fx.GraphModule:
    """Returns the graph with recomputation for the backward of this number."""
    *nodes, output = module.graph.nodes
    late = {n for n in nodes if n.meta.get("derivative") == number}
    needed = ancestors(late)
    early = [n for n in nodes if n in needed and n not in late]
    if not dependents(nodes, late).isdisjoint(early):
        return module  # an early value depends on this backward: recomputation would be circular
    read = {n for n in early if any(user in late for user in n.users)}
    results = {n for n in output.all_input_nodes if n not in late}
    inputs = {n for n in nodes if n.op == "placeholder"}
    saved = Cut(early, set(early), read, results, inputs, Costs(nodes, set(early), results)).choose(budget)
    kept = {*saved, *filter(_is_always_kept, early)}
    if read <= kept:
        return module
    copy = _Copy(nodes, late, kept)
    made = copy.graph.output(fx.node.map_arg(output.args[0], copy.of.__getitem__))
    made.meta = dict(output.meta)
    remove_dead(copy.graph)
    return GraphModule(module, copy.graph)


class _Copy:
    """A copy of the graph in which late nodes (those of one backward) read second copies of the early nodes that are
    not kept.

    Attributes:
        of: the copy of each node.
        recomputed: the second copies of early nodes, each placed before its first reader.
    """

    def __init__(self, nodes: Iterable[Node], late: Container[Node], kept: Container[Node]) -> None:
        self.graph, self.late, self.kept = Graph(), late, kept
        self.of: dict[Node, Node] = {}
        self.recomputed: dict[Node, Node] = {}
        for node in nodes:
            if node in late:
                for operand in node.all_input_nodes:
                    self.recompute(operand)
                self.of[node] = self.graph.node_copy(node, self.for_late)
            else:
                self.of[node] = self.graph.node_copy(node, self.of.__getitem__)
        self.wait()

    def for_late(self, node: Node) -> Node:
        """Returns the node that the backward reads instead of `node`."""
        return self.of[node] if node in self.late or node in self.kept else self.recomputed[node]

    def recompute(self, node: Node) -> None:
        """Create the second copies of a node and of its operands that do not exist yet."""
        stack = [node]
        while stack:
            node = stack[-1]
            if node in self.late or node in self.kept or node in self.recomputed:
                stack.pop()
                continue
            waiting = [n for n in node.all_input_nodes if not (n in self.kept or n in self.recomputed)]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            args = fx.node.map_arg(node.args, self.for_late)
            kwargs = fx.node.map_arg(node.kwargs, self.for_late)
            made = self.graph.create_node(node.op, node.target, args, kwargs, f"{node.name}_again")
            made.meta = dict(node.meta)
            self.recomputed[node] = made

    def wait(self) -> None:
        """Delay recomputed nodes, and nodes of the backward that depend only on them, until a gradient is known
        (`meta["after"]`)."""
        nodes = list(self.graph.nodes)
        position = {n: at for at, n in enumerate(nodes)}
        recomputed = set(self.recomputed.values())
        late = {made for node, made in self.of.items() if node in self.late}
        gradient: dict[Node, Node | None] = {}
        for node in reversed(nodes):
            if node in late or node in recomputed:
                gradient[node] = self._gradient_beside(node, late, gradient, position)
        flowing: set[Node] = set()
        for node in nodes:
            if node not in gradient:
                continue
            other = gradient[node]
            if any(n in flowing for n in node.all_input_nodes):
                flowing.add(node)
            elif node in late and other is None and kind_of(node) not in FREE:
                flowing.add(node)  # the first node of the backward
            elif other is not None:
                node.meta["after"] = other.name

    def _gradient_beside(
        self, node: Node, late: Container[Node], gradient: dict[Node, Node | None], position: dict[Node, int]
    ) -> Node | None:
        """Returns the latest value of the backward, computed before `node`, that the first reader of `node` also reads;
        None if there is none.
        """
        readers = [user for user in node.users if user in gradient]
        if not readers:
            return None
        first = min(readers, key=position.__getitem__)
        beside = [n for n in first.all_input_nodes if n in late and position[n] < position[node]]
        if beside:
            return max(beside, key=position.__getitem__)
        further = gradient[first]
        return further if further is not None and position[further] < position[node] else None
