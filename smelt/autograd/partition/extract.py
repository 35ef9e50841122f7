"""Extracts a subgraph of a joint graph: the nodes that compute given results from given values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from torch import fx
from torch.fx import Node

from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.ir.schema import is_collective
from smelt.prims.table import PRIMS


def nodes_among(values: Iterable[object]) -> list[Node]:
    """Returns the values that are nodes."""
    return [v for v in values if isinstance(v, Node)]


def exchanged_late(nodes: Iterable[Node]) -> list[Node]:
    """Returns the collectives that eager begins in its backward. They stay there, in its order, also if they read no
    gradient: in another process, which gives a gradient where this one gives nothing, they may.
    """
    return [node for node in nodes if node.meta.get("backward") and is_collective(node.target)]


def extract(
    module: fx.GraphModule,
    inputs: Sequence[Node],
    results: Sequence[Node | None],
    metas: Sequence[object],
    leaders: Iterable[Node],
    shown: Mapping[Node, Node] | None = None,
    drawn: Sequence[Node] = (),
) -> fx.GraphModule:
    """Returns the graph that computes results from inputs: `leaders` in order, each directly after its operands that
    are not computed yet.

    Args:
        shown: for values that are a reshape of an input, that input.
        drawn: nodes that draw random numbers, which are kept even if nothing reads them.
    """
    graph = Graph()
    env: dict[Node, Node] = {}
    for node in inputs:
        env[node] = graph.create_node("placeholder", node.name, (), {}, node.name)
        env[node].meta = dict(node.meta)
    for node, source in (shown or {}).items():
        if source in env and node not in env:
            env[node] = graph.call_function(PRIMS["reshape"], (env[source], node.meta["val"].shape))
            env[node].meta = dict(node.meta)
    wanted = _between([*nodes_among(results), *drawn], env)
    for leader in [*leaders, *nodes_among(results)]:
        if leader in wanted:
            _copy_with_operands(leader, graph, env)
    out = graph.output(tuple(None if r is None else env[r] for r in results))
    out.meta["val"] = tuple(metas)
    return GraphModule(module, graph)


def _copy_with_operands(node: Node, graph: fx.Graph, env: dict[Node, Node]) -> None:
    """Copy a node, after copying those of its operands that are not copied yet."""
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


def _between(results: Iterable[Node], known: Container[Node]) -> set[Node]:
    """Returns the nodes that have to be computed to get the results from the values `known`."""
    found: set[Node] = set()
    stack = [r for r in results if r not in known]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(n for n in node.all_input_nodes if n not in known)
    return found
