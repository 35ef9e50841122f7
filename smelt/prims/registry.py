"""Registers decompositions: `@decomposition(aten.silu.default) def silu(p, x): ...`.

A decomposition gets the lowering `p` (a Builder that also knows the ATen node at hand) and the operator's
arguments with nodes of the prim graph for tensors. It returns the value, a tuple of values, or
NotImplemented when it does not cover this use (the operator then stays as it is).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from smelt.base.imported_again import is_forgotten
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.meta_rules.elementwise import broadcast
from smelt.graph.nodes.range_checks import check_node, ranges_of, waits
from smelt.prims.builder import Builder
from smelt.prims.dtypes import LOW_PRECISION, compute_dtype, result_dtype
from smelt.prims.simplify import rounded
from smelt.prims.table import require
from smelt.shapes.size import Size, same

Decomposition = Callable[..., Any]
DECOMPOSITIONS: dict[OpOverload, Decomposition] = {}
"""The decomposition of each ATen operator that has one."""

COMPLEX: dict[OpOverload, Decomposition] = {}
"""The decomposition of each ATen operator that has one for complex operands or results."""

ANY_DTYPE: set[OpOverload] = set()
"""Operators whose decompositions also take complex operands; the others are asked about plain dtypes only."""

LIBRARY: set[OpOverload] = set()
"""Operators that may stay ATen: the kernel of torch's library is what an implementation would be."""

aten = torch.ops.aten


def any_dtype(*targets: OpOverload) -> None:
    """Call the decompositions of these operators for operands of any dtype."""
    ANY_DTYPE.update(targets)


def decomposition(*targets: OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Enter a decomposition for one or more operators."""
    return _enter_in(DECOMPOSITIONS, targets)


def complex_decomposition(*targets: OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Enter a decomposition for calls that have a complex operand or result."""
    return _enter_in(COMPLEX, targets)


def _enter_in(table: dict[OpOverload, Decomposition], targets: Sequence[OpOverload]) -> Any:
    def enter(function: Decomposition) -> Decomposition:
        for target in targets:
            before = table.get(target, function)
            if before is not function and not is_forgotten(before):
                raise ValueError(f"{target} has two decompositions")
            table[target] = function
        return function

    return enter


class Lowering(Builder):
    """A Builder that knows the ATen node being decomposed and numbers the random streams.

    Attributes:
        node: the ATen node at hand.
        result: its meta: a TensorMeta, or a tuple of them.
        of_cpu: for an operator that runs on a GPU, the values that replace its operands on the CPU.
        memories: by value of the joint graph, memory as eager makes it for that, which operators of a library may see.
        seeds: for each device that draws random numbers, the placeholder that its streams start from.
    """

    def __init__(self, graph: fx.Graph, *, eager_rng: bool = False) -> None:
        super().__init__(graph)
        self.eager_rng = eager_rng
        self.seeds: dict[torch.device, Node] = {}
        self.streams: dict[int, int] = {}
        self.result: Any = None
        self.node: Node | None = None
        self.of_cpu: set[Node] = set()
        self.memories: dict[Node, Node] = {}

    @property
    def out(self) -> TensorMeta:
        """The ATen meta of the (first) result."""
        result = self.result
        return result[0] if isinstance(result, (tuple, list)) else result

    def next_stream(self) -> int:
        """A random stream that no other node uses. It depends on the node's position among those that draw alone."""
        number = self.scope.get("random", 0)
        used = self.streams[number] = self.streams.get(number, -1) + 1
        return int(256 * number + used)

    # -- what most decompositions are made of

    def pointwise(
        self,
        compute: Callable[..., Node],
        *operands: Any,
        dtype: torch.dtype | None = None,
        unrounded: Container[int] = (),
        unrounded_on_gpu: Container[int] | None = None,
    ) -> Node:
        """`compute` on the operands as eager does a pointwise op: promoted, broadcast, in float32 when the
        common dtype is of low precision, and rounded once to the result's dtype.

        Args:
            operands: nodes and Python numbers.
            dtype: the common dtype, where it is not the promotion of the operands.
            unrounded: positions of operands of which eager takes a number as it is. It rounds the others to the common
                dtype (`x == 0.1` is true for the number of bfloat16 next to 0.1), which matters in low precision.
            unrounded_on_gpu: the same in CUDA's kernels, where they are others.
        """
        common = dtype or result_dtype(*map(_promotes_as, operands))
        wide = compute_dtype(common)
        shape = self.out.shape
        if not any(isinstance(x, Node) for x in operands):  # `torch.div(8, 3)`: a prim needs one tensor
            operands = (self.full(shape, operands[0], wide, self.out.device), *operands[1:])
        if self.out.device.type == "cuda" and unrounded_on_gpu is not None:
            unrounded = unrounded_on_gpu
        ready = []
        for position, x in enumerate(operands):
            if common in LOW_PRECISION and not (position in unrounded and self.is_number(x)):
                x = self._rounded(x, common)
            ready.append(self.broadcast(self.convert(x, wide), shape) if isinstance(x, Node) else x)
        return self.convert(compute(*ready), self.out.dtype)

    def is_number(self, x: Any) -> bool:
        """Whether eager's kernels take an operand as a number, as they do for a CPU tensor without dimensions."""
        if not isinstance(x, Node):
            return True
        return not x.meta["val"].shape and (self.out.device.type != "cuda" or x in self.of_cpu)

    def _rounded(self, x: Any, low: torch.dtype) -> Any:
        """A value or a number as a dtype of low precision holds it; a symbolic number becomes a value."""
        if type(x) is Size:
            x = self.full((), x, torch.int64, self.out.device)
        return self.convert(x, low) if isinstance(x, Node) else rounded(x, low)

    def widen(self, x: Node) -> Node:
        """x in the dtype that arithmetic on it runs in."""
        return self.convert(x, compute_dtype(x.meta["val"].dtype))

    def looked_at(self, func: OpOverload, args: Sequence[Any]) -> Sequence[Any]:
        """The operands of the operator at hand, which whoever reads them gets once the processor has looked at them, or
        raised, where eager's does (`graph.nodes.range_checks.waits`)."""
        assert self.node is not None
        seen: dict[Node, Node] = {}
        for each in ranges_of(func, args) if waits(self.node) else ():
            x = each.operand
            flag = check_node(self.call, each)
            flag = self.broadcast(flag, shape_of(x))
            seen[x] = self.where(flag, self.full_like(x, 0), seen.get(x, x))  # it is False
        return fx.node.map_arg(tuple(args), lambda x: seen.get(x, x)) if seen else args

    def within(self, x: Node, low: float, high: float | None, fault: int) -> Node:
        """x, checked: a number outside of the range (NaN is outside) raises the error that `fault` names."""
        inside = self.ge(x, low)
        if high is not None:
            inside = self.logical_and(inside, self.le(x, high))
        return self.refuse(x, self.logical_not(inside), fault)

    def dims_of(self, x: Node, dims: Sequence[int] | int | None) -> tuple[int, ...]:
        """Non-negative sorted dims; None and empty mean all."""
        rank = len(x.meta["val"].shape)
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return tuple(range(rank))
        given = (dims,) if isinstance(dims, int) else dims
        return tuple(sorted({d % rank for d in given})) if rank else ()


def _promotes_as(operand: Any) -> Any:
    return operand.meta["val"] if isinstance(operand, Node) else operand


def is_empty(shape: Sequence[int]) -> bool:
    """True when a tensor of this shape has no elements (a symbolic size is not taken for 0)."""
    return any(same(n, 0) for n in shape)


def as_float(count: int) -> float:
    """A count as a float operand; a symbolic one is unchanged."""
    return count if isinstance(count, Size) else float(count)


def common_shape(*nodes: Node) -> tuple[int, ...]:
    """The shape that the values broadcast to."""
    shape = broadcast([x.meta["val"] for x in nodes])
    require(shape is not None, f"shapes that do not broadcast: {[shape_of(x) for x in nodes]}")
    assert shape is not None
    return shape


def shape_of(x: Node) -> tuple[int, ...]:
    """The shape of a node's value."""
    return x.meta["val"].shape


def dtype_of(x: Node) -> torch.dtype:
    """The dtype of a node's value."""
    return x.meta["val"].dtype


def device_of(x: Node) -> torch.device:
    """The device of a node's value."""
    return x.meta["val"].device


def rank_of(x: Node) -> int:
    """The number of dimensions of a node's value."""
    return len(x.meta["val"].shape)
