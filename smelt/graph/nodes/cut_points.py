"""Eager boundaries: nodes at which a torch-level graph is cut, because the program's Python code acts at these points.

A hook needs the very tensor through which gradients flow; inference mode is a mode of the thread. The graph is compiled
on either side of such a node, the node itself runs as plain Python, and PyTorch's autograd links the pieces. So effects
of hooks happen when they would in eager. A graph with eager boundaries also runs as plain Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from smelt.graph.ir.module import Graph
from smelt.graph.nodes.conditional import Conditional
from smelt.graph.nodes.modes import EXITS


class EagerBoundary:
    """The target of such a node; called with real tensors between two compiled pieces.

    Attributes:
        why: the reason for the cut, for messages.
        leaves: whether the boundary ends a region; its argument is then the token of the boundary that entered it.
    """

    why = "Python of the program"
    leaves = False

    def __init__(self) -> None:
        name = type(self).__name__
        self.__name__ = self.__qualname__ = name
        self.__module__ = type(self).__module__

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError


class Edge(EagerBoundary):
    """A tensor that leaves the graph at this node, since hooks are registered on it after the graph has run."""

    why = "a tensor with a hook, or that keeps its gradient"

    def __call__(self, tensor: torch.Tensor) -> None:
        return None


def boundaries(graph: fx.Graph) -> list[fx.Node]:
    """Returns the nodes that are boundaries, in order."""
    return [node for node in graph.nodes if isinstance(node.target, EagerBoundary)]


def cuts(graph: fx.Graph) -> list[fx.Node]:
    """Returns the nodes at which the graph is cut: boundaries and branches on tensors' values."""
    return [node for node in graph.nodes if isinstance(node.target, (EagerBoundary, Conditional))]


def in_pieces(graph: fx.Graph, backend: str) -> bool:
    """Whether the backend gets the graph in pieces, compiled when they first run. In eager a branch runs as Python."""
    return bool(boundaries(graph)) or backend != "eager" and bool(cuts(graph))


def remove_idle_boundaries(graph: fx.Graph) -> None:
    """Remove boundaries that have no effect: a tensor that only the caller reads, a region without nodes."""
    for node in boundaries(graph):
        if isinstance(node.target, Edge):
            (tensor,) = node.all_input_nodes
            if all(user.op == "output" or isinstance(user.target, Edge) for user in tensor.users):
                graph.erase_node(node)
        elif isinstance(node.target, EagerBoundary) and node.target.leaves and node.prev is node.args[0]:
            graph.erase_node(node)
            graph.erase_node(node.prev)


def why_cut(node: fx.Node) -> str:
    """Returns the reason for the cut at a node, for messages."""
    return node.target.why if isinstance(node.target, EagerBoundary) else "a branch on a tensor's value"


def without_regions_at(graph: fx.Graph) -> fx.Graph:
    """Returns the same graph with no region (gradients, autocast) open at a boundary: regions are left before it and
    reentered after it.
    """
    if not boundaries(graph) or not any(node.target in EXITS for node in graph.nodes):
        return graph
    out = Graph()
    copies: dict[fx.Node, fx.Node] = {}
    open_regions: list[fx.Node] = []
    for node in graph.nodes:
        at_boundary = isinstance(node.target, EagerBoundary)
        if at_boundary:
            for entered in reversed(open_regions):
                _call(out, EXITS[entered.target], (copies[entered],))  # type: ignore[index]
        copies[node] = out.node_copy(node, copies.__getitem__)
        if at_boundary:
            for entered in open_regions:
                copies[entered] = _call(out, entered.target, entered.args)
        elif node.target in EXITS:
            open_regions.append(node)
        elif node.target in EXITS.values():
            open_regions.remove(node.args[0])
    return out


def _call(graph: fx.Graph, target: Any, args: tuple[Any, ...]) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = None
    return node
