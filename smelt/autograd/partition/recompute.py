"""The costs of keeping a forward value for backward and of recomputing it, both in bytes moved.

The partition compares the two. Keeping a value costs a read, the memory that it occupies, and a write unless the
forward kernels store it in any case. Recomputing it costs arithmetic (in bytes that could be moved in the same time,
see `prims/cost.py`), another read of the operands of reductions, and a write if a backward kernel needs it in memory.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

import torch
from torch.fx import Node

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.schema import is_collective
from smelt.prims.cost import arithmetic_bytes
from smelt.prims.table import Kind, Prim
from smelt.shapes.size import hint

READ, HOLD, WRITE = 1.0, 0.5, 1.0
INPUT = 0.01  # cost factor of an input, which is in memory in any case; not zero, so that fewer inputs are kept
SLICE = 1.25  # cost factor of a kept slice, which is a copy

FREE = frozenset({Kind.VIEW, Kind.CREATION})
FUSIBLE = frozenset({Kind.POINTWISE, Kind.RANDOM, Kind.REDUCTION, Kind.COPY}) | FREE
PASSES = 4
"""Assumed number of times that a kernel of another kind (a sort, a scan, a scatter) reads its operands."""

NOWHERE = -1
"""The level of constants, random numbers and scalars, which occupy no memory."""


def kind_of(node: Node) -> Kind | None:
    """Returns the kind of a prim node; None for getitem and ATen nodes."""
    return node.target.kind if isinstance(node.target, Prim) else None


def is_barrier(node: Node) -> bool:
    """Whether the node is a separate kernel, whose operands and results are stored in memory."""
    if node.op != "call_function":
        return False
    kind = kind_of(node)
    return kind not in FUSIBLE if kind is not None else isinstance(node.target, OpOverload)


def nbytes(meta: object) -> int:
    """Returns the number of bytes of a value; 0 for numbers and tuples."""
    return hint(meta.nbytes) if isinstance(meta, TensorMeta) else 0


class Costs:
    """Costs of the values of one joint graph.

    Args:
        nodes: the graph's nodes in order.
        forward: nodes that the forward outputs need.
        always_kept: forward outputs, which are stored in any case.
        copied: inputs that are saved as copies.
    """

    def __init__(
        self, nodes: Sequence[Node], forward: set[Node], always_kept: Iterable[Node], copied: Container[Node] = ()
    ) -> None:
        self.forward, self.copied = forward, copied
        self.outputs = set(always_kept)
        self.level: dict[Node, int] = {}
        for node in nodes:
            lowest = 0 if nbytes(node.meta["val"]) > 8 and node.op == "placeholder" else NOWHERE
            below = max((self.level[n] for n in node.all_input_nodes), default=lowest)
            self.level[node] = max(below, 0) + 1 if is_barrier(node) else below

    def keep(self, node: Node) -> float:
        """Returns the bytes moved and occupied if the value is saved; infinite for tuples, and for views, whose base
        can be saved instead.
        """
        meta = node.meta["val"]
        if not isinstance(meta, TensorMeta):
            return math.inf
        size = float(max(nbytes(meta), 1))
        if node.op in ("placeholder", "get_attr"):
            return size * (READ + HOLD + WRITE) if node in self.copied else INPUT * size
        if kind_of(node) in FREE:
            return size * (READ + HOLD + WRITE) * SLICE if _cuts(node) else math.inf
        if node in self.outputs:
            return size * READ
        return size * (READ + HOLD + (0.0 if self._stored(node) else WRITE))

    def _stored(self, node: Node) -> bool:
        """Whether forward kernels store the value in memory: a separate kernel computes it or reads it."""
        if is_barrier(node) or kind_of(node) is None:
            return True
        level = self.level[node]
        return any(user in self.forward and self.level[user] > level for user in _readers(node))

    def recompute_cost(self, node: Node) -> float:
        """Returns the bytes moved, and the arithmetic in bytes, if backward computes the value from its operands."""
        prim, meta = node.target, node.meta["val"]
        if not isinstance(prim, Prim):
            return _fallback(node)
        if prim.kind in FREE:
            return 0.0
        work = _work(node, prim) + _reread_cost(node)
        late = (user for user in _readers(node) if user not in self.forward)
        work += WRITE * nbytes(meta) if any(map(is_barrier, late)) else 0.0
        return work + ((HOLD + WRITE) * nbytes(meta) if self._joins(node) else 0.0)

    def _joins(self, node: Node) -> bool:
        """Whether the node has a large operand from before the last separate kernel, as a residual connection has.

        Backward needs the later operand first. If the node were recomputed, its earlier operand would have to stay in
        memory until then, and so would that operand's own earlier operands, back to the start of the network.
        """
        level, size = self.level[node], nbytes(node.meta["val"])
        for operand in map(_base, node.all_input_nodes):
            big = 2 * nbytes(operand.meta["val"]) >= size
            if big and operand.op == "call_function" and NOWHERE < self.level[operand] < level:
                return True
        return False


def is_heavy(node: Node) -> bool:
    """Whether a value is recomputed only if a memory budget requires it."""
    return is_barrier(node) and kind_of(node) is not Kind.INDEXING


def never_twice(node: Node) -> bool:
    """Whether a value may differ when it is recomputed, or other processes would have to recompute it, too."""
    target = node.target
    if isinstance(target, OpOverload):
        return is_collective(target) or not _ONCE.isdisjoint(target.tags) or schema_of(target).is_mutable
    return False


_ONCE = frozenset({torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
"""The tags of operators that draw random numbers, or whose results have sizes that the forward program determines."""


def _work(node: Node, prim: Prim) -> float:
    """Returns arithmetic and memory traffic of the node, in bytes. A pointwise node is fused with its operands and has
    no traffic.
    """
    meta = node.meta["val"]
    made = [m for m in (meta if isinstance(meta, tuple) else (meta,)) if m is not None]
    arithmetic = arithmetic_bytes(prim, made, [n.meta["val"] for n in node.args if isinstance(n, Node)])
    match prim.kind:
        case Kind.POINTWISE | Kind.RANDOM:
            return arithmetic
        case Kind.REDUCTION | Kind.PRODUCT:
            return arithmetic + READ * nbytes_of_inputs(node)
        case Kind.COPY | Kind.INDEXING:
            return arithmetic + READ * nbytes(meta)
        case _:
            return arithmetic + PASSES * READ * nbytes_of_inputs(node)


def _reread_cost(node: Node) -> float:
    """Returns the bytes that the node reads from graph inputs: keeping these is free, reading them is not."""
    size = nbytes(node.meta["val"])
    inputs = (n for n in map(_base, node.all_input_nodes) if n.op == "placeholder")
    return READ * sum(min(nbytes(n.meta["val"]), size) for n in inputs)


def _fallback(node: Node) -> float:
    return 0.0 if not isinstance(node.target, OpOverload) else 10.0 * nbytes_of_inputs(node)


def nbytes_of_inputs(node: Node) -> float:
    """Returns the number of bytes of a node's operands."""
    return float(sum(nbytes(n.meta["val"]) for n in node.all_input_nodes))


def _readers(node: Node) -> Iterable[Node]:
    """Yields the users of a value, and for users that are views, the users of these instead."""
    for user in node.users:
        if kind_of(user) in FREE and user.op == "call_function":
            yield from _readers(user)
        else:
            yield user


def _base(node: Node) -> Node:
    """Returns the value of which the node is a view, or the node itself."""
    while kind_of(node) is Kind.VIEW:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _cuts(node: Node) -> bool:
    """Whether a slice leaves out at least half of its operand, so that a copy of it saves memory."""
    if not (isinstance(node.target, Prim) and node.target.name == "slice"):
        return False
    return 2 * nbytes(node.meta["val"]) <= nbytes(node.args[0].meta["val"])  # type: ignore[union-attr]


def saved_bytes(saved: Iterable[Node]) -> int:
    """Returns the number of bytes of the saved values, inputs excluded."""
    return sum(nbytes(n.meta["val"]) for n in saved if n.op not in ("placeholder", "get_attr"))
