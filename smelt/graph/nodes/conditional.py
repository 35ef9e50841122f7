"""A branch on a tensor's value as one node of a torch-level graph: `Conditional(condition, *operands)` runs one arm.

Both arms are graphs over the same operands, with outputs of the same metadata. Only one arm runs, so random numbers are
drawn, and tensors written, as in the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from smelt.graph.ir.module import Graph

_numbers = itertools.count()


class Conditional:
    """The target of a node that is a branch.

    Args:
        true, false: graph modules of the arms; each takes the operands and returns a tuple.
    """

    def __init__(self, true: fx.GraphModule, false: fx.GraphModule) -> None:
        self.true, self.false = true, false
        self.__name__ = self.__qualname__ = f"conditional_{next(_numbers)}"
        self.__module__ = __name__

    def __call__(self, condition: Any, *operands: Any) -> Any:
        return (self.true if condition else self.false)(*operands)


def conditionals(graph: fx.Graph) -> list[fx.Node]:
    """Returns the nodes that are branches, in order."""
    return [node for node in graph.nodes if isinstance(node.target, Conditional)]


def operands_of(nodes: Sequence[fx.Node], outputs: Sequence[fx.Node | None]) -> list[fx.Node]:
    """Returns the values from before a region that the region, and its outputs, need; each once, in order of use."""
    inside = set(nodes)
    needed = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside)
    return list(needed | dict.fromkeys(each for each in outputs if each is not None and each not in inside))


def cut_out(nodes: Sequence[fx.Node], operands: Sequence[fx.Node], outputs: Sequence[fx.Node | None]) -> fx.Graph:
    """Returns a copy of a region as a separate graph: a placeholder for each operand, then the nodes, then the outputs.

    An output may be None.
    """
    graph = Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for operand in operands:
        copies[operand] = graph.placeholder(operand.name)
        copies[operand].meta["val"] = operand.meta.get("val")
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    end = graph.output(tuple(None if each is None else copies[each] for each in outputs))
    end.meta["val"] = tuple(None if each is None else each.meta.get("val") for each in outputs)
    return graph
