"""The builder appends prim nodes to an fx graph: `p.mul(p.add(x, y), 2.0)`.

One method per prim, with the prim's own signature. Every call is simplified first (identities, constants; see
simplify), then looked up among the existing nodes (a common subexpression is one node), and only then becomes a node
whose `meta["val"]` is the result of the prim's meta rule. No tensor is computed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx import Node

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.aligned import aligned_addmm, aligned_mm
from smelt.prims.ops import PRIMS, Prim
from smelt.prims.simplify import RULES
from smelt.prims.simplify_views import VIEW_RULES
from smelt.prims.table import Kind
from smelt.shapes.size import Size, same_all

_RULES = RULES | VIEW_RULES | {"mm": aligned_mm, "addmm": aligned_addmm}

Value = Any
"""Type of a prim argument: a Node, a Python number, a tuple of these, or a parameter."""


def meta_of_value(value: Value) -> Any:
    """Returns an argument with each node replaced by its meta, also inside tuples."""
    if isinstance(value, Node):
        return value.meta["val"]
    if isinstance(value, (tuple, list)):
        return tuple(meta_of_value(v) for v in value)
    return value


class Builder:
    """Appends prim nodes to `graph`. `scope` entries are copied into the meta of each new node."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.scope: dict[str, Any] = {}
        self._known: dict[Any, Node] = {}
        self._items: dict[Node, tuple[Node | None, ...]] = {}

    def emit(self, prim: Prim, *args: Value, **kwargs: Value) -> Any:
        """Returns the value of one call of a prim: an existing node, a new one, or a tuple for several results."""
        args = prim.bind(args, kwargs)
        if Size in map(type, args) and prim.kind is Kind.POINTWISE:
            args = self._with_tensors(args)
        rule = _RULES.get(prim.name)
        if rule is not None:
            simpler = rule(self, *args)
            if simpler is not None:
                return simpler
        return self.unique(prim, args)

    def _with_tensors(self, args: tuple[Value, ...]) -> tuple[Value, ...]:
        """Replace symbolic numbers by tensors: later stages support them only in `full` and `iota`."""
        like: TensorMeta = next(a for a in args if isinstance(a, Node)).meta["val"]
        dtype = like.dtype
        if len(args) == 3:  # in `where` the first operand is the mask
            dtype = next((a.meta["val"].dtype for a in args[1:] if isinstance(a, Node)), torch.int64)
        full = PRIMS["full"]
        return tuple(self.emit(full, like.shape, a, dtype, like.device) if type(a) is Size else a for a in args)

    def unique(self, prim: Prim, args: tuple[Value, ...]) -> Any:
        """Returns the node of exactly this call, made only once, without simplification."""
        key = (prim.name, *map(_key, args))
        node = self._known.get(key)
        if node is None:
            node = self._append(prim, prim.name, args, prim.meta(*map(meta_of_value, args)))
            self._known[key] = node
        meta = node.meta["val"]
        return self.items(node) if type(meta) is tuple else node

    def _append(self, target: Callable[..., Any], name: str, args: tuple[Value, ...], meta: Any) -> Node:
        node = self.graph.create_node("call_function", target, args, {}, name)
        node.meta.update(self.scope)
        node.meta["val"] = meta
        return node

    def items(self, node: Node) -> tuple[Node | None, ...]:
        """Returns the getitem nodes of a node with several results; None for results whose meta is None."""
        known = self._items.get(node)
        if known is None:
            metas = enumerate(node.meta["val"])
            known = tuple(
                None if m is None else self._append(operator.getitem, node.name, (node, i), m) for i, m in metas
            )
            self._items[node] = known
        return known

    def call(self, target: Callable[..., Any], args: tuple[Value, ...], kwargs: dict[str, Value], meta: Any) -> Any:
        """Make a node that is not a prim (an ATen fallback), with the given meta."""
        node = self.graph.create_node("call_function", target, args, kwargs)
        node.meta.update(self.scope)
        node.meta["val"] = meta
        return self.items(node) if isinstance(meta, (tuple, list)) else node

    # -- shorthands that are not prims themselves

    def broadcast(self, x: Node, shape: Sequence[int]) -> Node:
        """Returns x expanded to shape by NumPy's rule (dimensions are aligned at the end)."""
        own = x.meta["val"].shape
        shape = tuple(shape)
        if same_all(own, shape):
            return x
        lead = len(shape) - len(own)
        return self.emit(PRIMS["broadcast_in_dim"], x, shape, tuple(range(lead, len(shape))))

    def keep(self, x: Node, dims: Sequence[int]) -> Node:
        """Returns x with dimensions of size 1 inserted at dims (positions in the result): the `keepdim` form of a
        reduction.
        """
        own = x.meta["val"].shape
        rank = len(own) + len(dims)
        rest = iter(own)
        return self.emit(PRIMS["reshape"], x, tuple(1 if d in dims else next(rest) for d in range(rank)))

    def spread(self, x: Node, shape: Sequence[int], dims: Sequence[int]) -> Node:
        """Returns the result of a reduction over dims, expanded to shape, which is the shape before the reduction."""
        kept = tuple(d for d in range(len(shape)) if d not in dims)
        return self.emit(PRIMS["broadcast_in_dim"], x, tuple(shape), kept)

    def full_like(self, x: Node, value: float) -> Node:
        """Returns a constant with the shape, dtype and device of x."""
        meta: TensorMeta = x.meta["val"]
        return self.emit(PRIMS["full"], meta.shape, value, meta.dtype, meta.device)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def _method(prim: Prim) -> Callable[..., Any]:
    def method(self: Builder, *args: Value, **kwargs: Value) -> Any:
        return self.emit(prim, *args, **kwargs)

    method.__name__ = prim.name
    method.__doc__ = f"{prim.schema()}: {prim.__doc__}"
    return method


for _prim in PRIMS.values():
    setattr(Builder, _prim.name, _method(_prim))


def _key(value: Value) -> Any:
    """Returns a hashable key of an argument; it also distinguishes values that are equal in Python: True, 1 and 1.0;
    0.0 and -0.0.
    """
    kind = type(value)
    if kind is Node or kind is str or kind is torch.dtype or value is None:
        return value
    if kind is tuple or kind is list:
        return tuple(map(_key, value))
    if kind is float and value == 0.0:
        return "0.0" if math.copysign(1.0, value) > 0 else "-0.0"
    if kind is float and value != value:
        return "nan"
    return (kind, value)
