"""What it costs to keep a forward value for backward, and to recompute it, both in bytes moved.

The partition weighs the two. Keeping a value costs reading it back, the memory it holds, and a write when the
forward kernels would not store it anyway. Recomputing it costs arithmetic (in bytes that could be moved
meanwhile: `prims/cost.py`), re-reading for reductions, and a write when a backward kernel needs it in memory.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

import torch
from torch.fx import Node

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta
from smelt.prims.cost import arithmetic_bytes
from smelt.prims.table import Kind, Prim
from smelt.shapes.size import hint

READ, HOLD, WRITE = 1.0, 0.5, 1.0
INPUT = 0.01  # an input exists anyway; not zero, so that fewer are kept
SLICE = 1.25  # a kept slice is a copy

FREE = frozenset({Kind.VIEW, Kind.CREATION})
FUSIBLE = frozenset({Kind.POINTWISE, Kind.RANDOM, Kind.REDUCTION, Kind.COPY}) | FREE
PASSES = 4
"""Times that a kernel of another kind (a sort, a scan, a scatter) is taken to read its operands."""

NOWHERE = -1
"""The level of constants, random numbers and scalars: they wait in no memory."""


def kind_of(node: Node) -> Kind | None:
    """The kind of a prim node (getitem and ATen nodes have none)."""
    return node.target.kind if isinstance(node.target, Prim) else None


def is_barrier(node: Node) -> bool:
    """Whether the node is a separate kernel, whose operands and results are stored in memory."""
    if node.op != "call_function":
        return False
    kind = kind_of(node)
    return kind not in FUSIBLE if kind is not None else isinstance(node.target, OpOverload)


def nbytes(meta: object) -> int:
    """Bytes of a value; numbers and tuples have none of their own."""
    return hint(meta.nbytes) if isinstance(meta, TensorMeta) else 0


class Costs:
    """Costs of the values of one joint graph.

    Args:
        nodes: the graph's nodes in order.
        forward: nodes that the forward outputs need.
        kept_anyway: forward outputs; they are stored whatever the partition decides.
        copied: inputs that are only kept as copies.
    """

    def __init__(
        self, nodes: Sequence[Node], forward: set[Node], kept_anyway: Iterable[Node], copied: Container[Node] = ()
    ) -> None:
        self.forward, self.copied = forward, copied
        self.outputs = set(kept_anyway)
        self.level: dict[Node, int] = {}
        for node in nodes:
            lowest = 0 if nbytes(node.meta["val"]) > 8 and node.op == "placeholder" else NOWHERE
            below = max((self.level[n] for n in node.all_input_nodes), default=lowest)
            self.level[node] = max(below, 0) + 1 if is_barrier(node) else below

    def keep(self, node: Node) -> float:
        """Bytes moved and occupied when the value is saved; infinite for tuples and views, whose base is saved."""
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
        """Whether forward kernels put the value in memory: a barrier makes or reads it, or it outlives one."""
        if is_barrier(node) or kind_of(node) is None:
            return True
        level = self.level[node]
        return any(user in self.forward and self.level[user] > level for user in _readers(node))

    def recompute_cost(self, node: Node) -> float:
        """Bytes moved (or work in bytes) when backward computes the value from its operands."""
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
        """Whether the node takes an operand past a barrier, as a residual connection does.

        Backward meets the later operand first: recomputed, the earlier one would wait in memory, and
        its own past with it, back to the start of the network.
        """
        level, size = self.level[node], nbytes(node.meta["val"])
        for operand in map(_base, node.all_input_nodes):
            big = 2 * nbytes(operand.meta["val"]) >= size
            if big and operand.op == "call_function" and NOWHERE < self.level[operand] < level:
                return True
        return False


def is_heavy(node: Node) -> bool:
    """A value that is not computed twice unless a memory budget asks for it."""
    return is_barrier(node) and kind_of(node) is not Kind.INDEXING


def never_twice(node: Node) -> bool:
    """A value that may differ when it is recomputed."""
    target = node.target
    if isinstance(target, OpOverload):
        return not _ONCE.isdisjoint(target.tags) or schema_of(target).is_mutable
    return False


_ONCE = frozenset({torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
"""Of operators that draw random numbers, or whose results have sizes that the forward program tells."""


def _work(node: Node, prim: Prim) -> float:
    """Arithmetic and traffic of a kernel that computes only this node, in bytes; pointwise kinds share a kernel."""
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
    """Bytes read from inputs: keeping an input is free, reading it is not."""
    size = nbytes(node.meta["val"])
    inputs = (n for n in map(_base, node.all_input_nodes) if n.op == "placeholder")
    return READ * sum(min(nbytes(n.meta["val"]), size) for n in inputs)


def _fallback(node: Node) -> float:
    return 0.0 if not isinstance(node.target, OpOverload) else 10.0 * nbytes_of_inputs(node)


def nbytes_of_inputs(node: Node) -> float:
    """Bytes that a node reads."""
    return float(sum(nbytes(n.meta["val"]) for n in node.all_input_nodes))


def _readers(node: Node) -> Iterable[Node]:
    """The users of a value, views looked through."""
    for user in node.users:
        if kind_of(user) in FREE and user.op == "call_function":
            yield from _readers(user)
        else:
            yield user


def _base(node: Node) -> Node:
    """The value behind views."""
    while kind_of(node) is Kind.VIEW:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _cuts(node: Node) -> bool:
    """Whether a slice leaves out at least half of its operand, so that a copy of it saves memory."""
    if not (isinstance(node.target, Prim) and node.target.name == "slice"):
        return False
    return 2 * nbytes(node.meta["val"]) <= nbytes(node.args[0].meta["val"])  # type: ignore[union-attr]


def saved_bytes(saved: Iterable[Node]) -> int:
    """Bytes that the saved values hold beyond inputs."""
    return sum(nbytes(n.meta["val"]) for n in saved if n.op not in ("placeholder", "get_attr"))
