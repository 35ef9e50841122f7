"""Specialises a prim graph to calls in which some unbacked sizes are 0.

Code for symbolic sizes assumes at least one element, from which it proves that indices are in range. With a size of 0
most of a graph is dead: values without elements become constants, and their operands have no users left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.module import Graph, GraphModule, remove_dead
from smelt.prims.known_sizes import with_known_sizes
from smelt.prims.table import PRIMS
from smelt.shapes.size import Factor, IntLike, Size, Symbol, as_symbol, of_factor, same, substitute


def emptied(gm: fx.GraphModule, zeros: Collection[Symbol]) -> fx.GraphModule:
    """Returns the graph with these symbols replaced by 0 and removed from its inputs.

    Raises:
        ZeroDivisionError: a size is divided by one of them.
    """
    known: dict[Factor, IntLike] = dict.fromkeys(zeros, 0)
    for symbol in zeros:  # another symbol may have been found to be equal
        other = as_symbol(with_known_sizes(of_factor(symbol)))
        if other is not None:
            known[other] = 0
    graph = Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" and as_symbol(node.meta["val"]) in zeros:
            continue
        meta = node.meta["val"] if node.op == "placeholder" and isinstance(node.meta["val"], Size) else None
        meta = _with(node.meta["val"], known, env) if meta is None else meta
        if node.op == "call_function" and isinstance(meta, TensorMeta) and any(same(n, 0) for n in meta.shape):
            made = graph.create_node("call_function", PRIMS["full"], (meta.shape, 0, meta.dtype, meta.device))
        else:
            made = graph.create_node(
                node.op, node.target, _with(node.args, known, env), _with(node.kwargs, known, env), node.name
            )
        made.meta = {**node.meta, "val": meta}
        env[node] = made
    remove_dead(graph)
    return GraphModule(gm, graph)


def _with(value: Any, known: Mapping[Factor, IntLike], env: Mapping[fx.Node, fx.Node]) -> Any:
    """Returns a meta, or an argument of a node, with symbols replaced by the numbers of `known`."""
    match value:
        case fx.Node() if isinstance(value.meta.get("val"), Size):
            number = _with(value.meta["val"], known, env)
            return env[value] if isinstance(number, Size) and value in env else number
        case fx.Node():
            return env[value]
        case Size():
            return substitute(with_known_sizes(value), known)
        case TensorMeta() if value.symbolic:
            return _meta_with(value, known, env)
        case tuple():
            return tuple(_with(item, known, env) for item in value)
        case list():
            return [_with(item, known, env) for item in value]
        case dict():
            return {key: _with(item, known, env) for key, item in value.items()}
        case slice():
            return slice(*(_with(n, known, env) for n in (value.start, value.stop, value.step)))
    return value


def _meta_with(meta: TensorMeta, known: Mapping[Factor, IntLike], env: Mapping[fx.Node, fx.Node]) -> TensorMeta:
    ones = dict.fromkeys(known, 1)  # strides are computed with 1 for sizes of 0
    steps = (_with(n, ones if same(_with(n, known, env), 0) else known, env) for n in meta.stride)
    return replace(meta, shape=_with(meta.shape, known, env), stride=tuple(steps))
