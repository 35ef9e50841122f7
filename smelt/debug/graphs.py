"""Reductions of a graph: each function returns a smaller graph and its inputs, or None if it does not apply."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from smelt.debug.compare import copies


@dataclass
class Small:
    """A graph and the inputs for which it fails, one for each placeholder."""

    graph: fx.Graph
    inputs: list[Any]

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute a value: all except placeholders and the output."""
        return [n for n in self.graph.nodes if n.op not in ("placeholder", "output")]

    @property
    def module(self) -> fx.GraphModule:
        """The graph as a module that can be printed."""
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def values(self) -> dict[str, Any]:
        """The value of each node, by name, copied when it is computed."""
        recorder = _Recorder(self.module)
        recorder.run(*copies(self.inputs))
        return recorder.found


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.found[n.name] = copies([value])[0] if isinstance(value, Tensor) else value
        return value


def copied(small: Small) -> tuple[Small, dict[str, fx.Node]]:
    """A copy of the graph, and its nodes by the names in the original."""
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(small.graph, nodes))
    return Small(graph, [*small.inputs]), {old.name: new for old, new in nodes.items()}


def with_outputs(small: Small, names: Sequence[str]) -> Small:
    """The graph with these nodes as its only outputs."""
    made, nodes = copied(small)
    made.graph.output_node().args = (tuple(nodes[name] for name in names),)
    return tidied(made)


def with_inputs(small: Small, names: Collection[str], values: Mapping[str, Any]) -> Small | None:
    """The graph with a new input in place of each of these nodes."""
    made, nodes = copied(small)
    first = next(n for n in made.graph.nodes if n.op != "placeholder")
    done = 0
    for name in names:
        value, node = values.get(name), nodes[name]
        if not isinstance(value, Tensor) or not node.users:
            continue
        with made.graph.inserting_before(first):
            placeholder = made.graph.placeholder("given")
        node.replace_all_uses_with(placeholder)
        made.inputs.append(value)
        done += 1
    return tidied(made) if done else None


def without(small: Small, name: str, values: Mapping[str, Any]) -> Iterator[Small]:
    """Graphs without a node: an operand with its shape and dtype replaces it; a node without readers is removed."""
    here = next(n for n in small.graph.nodes if n.name == name)
    operands = [o.name for o in here.all_input_nodes if _alike(values.get(o.name), values.get(name))]
    for operand in operands:
        made, nodes = copied(small)
        nodes[name].replace_all_uses_with(nodes[operand])
        made.graph.erase_node(nodes[name])
        yield tidied(made)
    if all(not user.users and user.op != "output" for user in here.users):
        made, nodes = copied(small)
        for user in [*nodes[name].users]:
            made.graph.erase_node(user)
        made.graph.erase_node(nodes[name])
        yield tidied(made)


def _alike(one: Any, other: Any) -> bool:
    both = isinstance(one, Tensor) and isinstance(other, Tensor)
    return both and one.shape == other.shape and one.dtype == other.dtype


def tidied(small: Small) -> Small:
    """The graph without unread nodes and inputs; nodes that write or change modes stay."""
    for node in reversed([*small.graph.nodes]):
        if not node.users and node.op not in ("placeholder", "output") and not _has_effects(node):
            small.graph.erase_node(node)
    inputs = []
    for placeholder, value in zip([n for n in small.graph.nodes if n.op == "placeholder"], small.inputs, strict=True):
        if placeholder.users:
            inputs.append(value)
        else:
            small.graph.erase_node(placeholder)
    return Small(small.graph, inputs)


def _has_effects(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    writes = name.split(".")[0].endswith("_") and not name.endswith("__")
    return writes or "out" in node.kwargs or node.target is operator.setitem or node.is_impure()


def with_size(small: Small, old: int, new: int) -> Small:
    """The graph in which each dimension of size `old`, and each number equal to it, becomes `new`."""
    made, _ = copied(small)
    made.inputs = [_resized(x, old, new) if isinstance(x, Tensor) else x for x in made.inputs]
    swap = _swapping(old, new)
    for node in made.graph.nodes:
        node.meta.pop("val", None)
        if node.op != "output":
            node.args = swap(node.args)
            node.kwargs = {key: swap(value) for key, value in node.kwargs.items()}
    return made


def _swapping(old: int, new: int) -> Callable[[Any], Any]:
    def swap(value: Any) -> Any:
        if type(value) is int:
            return new if value == old else value
        return fx.node.map_aggregate(value, swap) if isinstance(value, (tuple, list)) else value

    return swap


def _resized(x: Tensor, old: int, new: int) -> Tensor:
    with torch.no_grad():
        made = x.detach()
        for dim, size in enumerate(x.shape):
            if size == old:
                made = made.narrow(dim, 0, new)
        if made is not x and made.shape != x.shape:
            made = made.clone()
        if not x.dtype.is_floating_point and not x.dtype.is_complex and x.dtype != torch.bool:
            made = made.clamp(max=new - 1) if made.numel() and int(made.max()) < old else made
    return made.requires_grad_(x.requires_grad)


def sizes(small: Small) -> list[int]:
    """The sizes in shapes of inputs that can be reduced, largest first."""
    return sorted({n for x in small.inputs if isinstance(x, Tensor) for n in x.shape if n > 1}, reverse=True)
