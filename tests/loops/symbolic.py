"""Prim graphs with symbolic sizes for the tests of loops, schedule and codegen, and the same graphs at given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import Size, Symbol, evaluate, symbols
from tests.loops.graphs import GraphBuilder


class SymbolicBuilder(GraphBuilder):
    """A builder whose shapes may hold `g.symbols[i]`; their placeholders come after those of the tensors."""

    def __init__(self, *hints: int) -> None:
        super().__init__()
        self.known = Assumptions()
        self.symbols = [self.known.symbol(n) for n in hints]

    def build(self, *outputs: fx.Node) -> fx.GraphModule:
        for symbol in self.symbols:
            node = self.graph.placeholder(str(symbol))
            node.meta["val"] = symbol
        return super().build(*outputs)


def at_sizes(gm: fx.GraphModule, sizes: Sequence[int]) -> fx.GraphModule:
    """The graph at these values of its symbols: without any symbol, and with the placeholders of the tensors only."""
    found = [s for n in gm.graph.find_nodes(op="placeholder") if isinstance(n.meta["val"], Size)
             for s in symbols(n.meta["val"])]  # fmt: skip
    values = dict(zip(found, sizes, strict=True))
    graph, copies = fx.Graph(), {}
    for node in gm.graph.nodes:
        if isinstance(node.meta.get("val"), Size):
            continue
        args, kwargs = _at((node.args, node.kwargs), values, copies)
        copy = copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        if "val" in node.meta:
            copy.meta["val"] = _at(node.meta["val"], values, copies)
    return fx.GraphModule(gm, graph)


def _at(value: Any, values: Mapping[Symbol, int], copies: Mapping[fx.Node, fx.Node]) -> Any:
    match value:
        case fx.Node():
            return copies[value]
        case Size():
            return evaluate(value, values)
        case TensorMeta():
            return replace(value, shape=_at(value.shape, values, copies), stride=_at(value.stride, values, copies))
        case tuple() | list():
            return type(value)(_at(item, values, copies) for item in value)
        case dict():
            return {key: _at(item, values, copies) for key, item in value.items()}
    return value


def assert_close(got: Sequence[Any], want: Sequence[Any], tolerance: float = 1e-4) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance, equal_nan=True)
