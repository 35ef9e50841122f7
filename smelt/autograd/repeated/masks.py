"""Gradient marks of a graph with all its blocks: the results on which each gradient depends, if blocks return values.

The trace finds them in autograd's engine. Here they are found in the graph: a gradient depends on the tangents from
which it is computed. That is done only if it gives the trace's marks for the graph with four blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx
from torch.fx import Node

from smelt.autograd.repeated.places import Refused
from smelt.autograd.repeated.returned import Returned
from smelt.autograd.trace.plan import Joint
from smelt.graph.ir.gradient_marks import Contribution, Flow, GradientMark


class Masks:
    """The conditions under which gradients of the whole graph exist.

    Attributes:
        flow: the conditions.
    """

    def __init__(
        self, short: fx.Graph, joint: Joint, returned: Returned, whole: fx.Graph, gradients: Sequence[Any]
    ) -> None:
        """Args:
        short: the graph with four blocks, whose plan is `joint`.
        whole: the graph with all blocks, without its output. Its marks are replaced.
        gradients: the gradients of the whole graph.

        Raises:
            Refused: the marks of the short graph do not follow from its calls.
        """
        self.flow, self.gradients = joint.flow, gradients
        self.known: Mapping[Node, int] | None = None
        if len(returned.differentiable) == len(joint.differentiable):
            return
        if joint.flow is None or joint.flow.choices:
            raise Refused
        _check(short, joint)
        self.flow = flow = Flow(len(returned.differentiable))
        self.known = _masks(whole.nodes)
        for node in whole.nodes:
            if isinstance(node.target, GradientMark):
                node.target = Contribution(flow, self.known.get(node, 0))

    def reached(self, positions: Sequence[int | None], copied: Mapping[int, int]) -> Mapping[int, int]:
        """Returns for primals with a gradient the conditions under which it exists.

        Args:
            positions: for each primal, the position of its gradient, or None.
            copied: the conditions of the short graph for the primals from which they are copied.
        """
        if self.known is None:
            return copied
        return {i: self.known.get(self.gradients[positions[i]], 0) for i in copied}  # type: ignore[index]


def _check(graph: fx.Graph, joint: Joint) -> None:
    known = _masks(graph.nodes)
    marks = [node for node in graph.nodes if isinstance(node.target, GradientMark)]
    if any(type(node.target) is not Contribution or node.target.mask != known.get(node, 0) for node in marks):
        raise Refused
    _, gradients, _ = joint.split_results(graph.output_node().args[0])  # type: ignore[arg-type]
    for i, mask in joint.reached.items():
        k = joint.gradients[i]
        node = gradients[k] if isinstance(k, int) else None
        if not isinstance(node, Node) or known.get(node, 0) != mask:
            raise Refused


def _masks(nodes: Iterable[Node]) -> dict[Node, int]:
    """Returns for each node that is computed from tangents the set of these tangents, as bits."""
    found: dict[Node, int] = {}
    tangents = 0
    for node in nodes:
        if node.op == "placeholder":
            if node.name.startswith("tangents_"):
                found[node] = 1 << tangents
                tangents += 1
            continue
        mask = 0
        for operand in node.all_input_nodes:
            mask |= found.get(operand, 0)
        if mask:
            found[node] = mask
    return found
