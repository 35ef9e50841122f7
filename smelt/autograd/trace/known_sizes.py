"""Joint graph for many sizes in; the same graph with what its trace learned of the sizes put in.

Two operands are broadcast where one's size is 1. If that was asked of a size like `s - 1`, each call is guarded to have
the same answer, but values that were recorded before still have the size in its old form: later stages, which compare
forms, would take it for a dimension of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.size import Size, simplified


def put_known_sizes(graph: fx.Graph) -> None:
    """Sizes of tensors and those among arguments, in the form that is known at the end of the trace."""
    for node in graph.nodes:
        val = node.meta["val"] = _meta(node.meta.get("val"))
        if node.op == "call_function" and isinstance(val, (TensorMeta, tuple)):  # what checks a fact keeps its form
            if _holds_size(node.args):
                node.args = _sizes(node.args)
            if node.kwargs and _holds_size(node.kwargs):
                node.kwargs = _sizes(node.kwargs)


def _meta(val: Any) -> Any:
    if isinstance(val, TensorMeta) and val.symbolic:
        return replace(val, shape=simplified(val.shape), stride=simplified(val.stride))
    return tuple(map(_meta, val)) if isinstance(val, (tuple, list)) else val


def _holds_size(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_size, value))
    return any(map(_holds_size, value.values())) if isinstance(value, dict) else isinstance(value, Size)


def _sizes(value: Any) -> Any:
    if isinstance(value, Size):
        return simplified((value,))[0]
    if isinstance(value, (tuple, list)):
        return type(value)(map(_sizes, value))
    return {k: _sizes(v) for k, v in value.items()} if isinstance(value, dict) else value
