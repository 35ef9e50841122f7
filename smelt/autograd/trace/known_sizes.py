"""Joint graph with symbolic sizes in; the same graph with simplified sizes out.

Broadcasting tests whether a size is 1. When the trace decides this for a size such as `s - 1`, a guard makes every call
agree with the decision, but metadata recorded earlier still contains the unsimplified expression. Later stages compare
expressions and would treat the two forms of one size as different dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.size import Size, simplified


def put_known_sizes(graph: fx.Graph) -> None:
    """Simplify, in place, all sizes in tensor metadata and node arguments by the facts known after the trace."""
    for node in graph.nodes:
        val = node.meta["val"] = _meta(node.meta.get("val"))
        if node.op == "call_function" and isinstance(val, (TensorMeta, tuple)):  # checks of facts are not simplified
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
