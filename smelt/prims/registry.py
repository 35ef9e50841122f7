"""Registers decompositions: `@decomposition(aten.silu.default) def silu(p, x): ...`.

A decomposition gets `p`, a Lowering (the Builder with the ATen node that is being decomposed), and the operator's
arguments, in which tensors are nodes of the prim graph. It returns a value, a tuple of values, or NotImplemented if it
does not cover these arguments; the operator then stays ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from smelt.base.imports import is_of_dropped_module
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
"""The decompositions by ATen operator."""

COMPLEX: dict[OpOverload, Decomposition] = {}
"""The decompositions for calls with complex operands or results, by ATen operator."""

ANY_DTYPE: set[OpOverload] = set()
"""Operators whose decompositions take operands of any dtype; other decompositions are called only for the dtypes of
`dtypes.PLAIN`.
"""

LIBRARY: set[OpOverload] = set()
"""Operators that are meant to remain ATen operators and so are not counted as fallbacks: a decomposition would only
call torch's kernel.
"""

aten = torch.ops.aten


def any_dtype(*targets: OpOverload) -> None:
    """Declare that the decompositions of these operators take operands of any dtype."""
    ANY_DTYPE.update(targets)


def decomposition(*targets: OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Decorator that registers a decomposition for one or more operators."""
    return _enter_in(DECOMPOSITIONS, targets)


def complex_decomposition(*targets: OpOverload) -> Callable[[Decomposition], Decomposition]:
    """Decorator that registers a decomposition for calls with a complex operand or result."""
    return _enter_in(COMPLEX, targets)


def _enter_in(table: dict[OpOverload, Decomposition], targets: Sequence[OpOverload]) -> Any:
    def enter(function: Decomposition) -> Decomposition:
        for target in targets:
            before = table.get(target, function)
            if before is not function and not is_of_dropped_module(before):
                raise ValueError(f"{target} has two decompositions")
            table[target] = function
        return function

    return enter


STREAMS = 256
"""Number of random streams of one operator."""


class Lowering(Builder):
    """The Builder that decompositions get: it has the ATen node that is being decomposed, and numbers random streams.

    Attributes:
        node: the ATen node that is being decomposed.
        result: the meta of that node: a TensorMeta, or a tuple of them.
        of_cpu: GPU values that replace CPU operands of an operator that runs on a GPU.
        eager_copies: for values of the joint graph, the copy in eager's layout of which operators of a user's library
            get views.
        seeds: the placeholder of the seed, by device that draws random numbers.
        streams: for a node's position among the random nodes, the last stream that was used for it.
        eager_rng: whether random numbers are those that eager would draw.
    """

    def __init__(self, graph: fx.Graph, *, eager_rng: bool = False) -> None:
        super().__init__(graph)
        self.eager_rng = eager_rng
        self.seeds: dict[torch.device, Node] = {}
        self.streams: dict[int, int] = {}
        self.result: Any = None
        self.node: Node | None = None
        self.of_cpu: set[Node] = set()
        self.eager_copies: dict[Node, Node] = {}

    @property
    def out(self) -> TensorMeta:
        """The meta of the ATen node's result, or of the first of its results."""
        result = self.result
        return result[0] if isinstance(result, (tuple, list)) else result

    def next_stream(self) -> int:
        """Returns a random stream that no other node uses. It depends only on the node's position among the nodes that
        draw random numbers.
        """
        number = self.scope.get("random", 0)
        used = self.streams[number] = self.streams.get(number, -1) + 1
        return int(STREAMS * number + used)

    # -- building blocks of most decompositions

    def pointwise(
        self,
        compute: Callable[..., Node],
        *operands: Any,
        dtype: torch.dtype | None = None,
        unrounded: Container[int] = (),
        unrounded_on_gpu: Container[int] | None = None,
    ) -> Node:
        """Apply `compute` to the operands as eager computes a pointwise operator: they are promoted to the common dtype
        and broadcast, low-precision dtypes are computed in float32, and the result is rounded once to its dtype.

        Args:
            operands: nodes and Python numbers.
            dtype: the common dtype, if it is not the promoted dtype of the operands.
            unrounded: positions of operands that eager does not round to a low-precision common dtype if they are
                numbers. Eager rounds numbers at other positions: `x == 0.1` is true for the bfloat16 nearest to 0.1.
            unrounded_on_gpu: the positions that eager's CUDA kernels do not round; None: the same as `unrounded`.
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
        """Whether eager's kernels get the operand as a number: a Python number, or a 0-d tensor on the CPU."""
        if not isinstance(x, Node):
            return True
        return not x.meta["val"].shape and (self.out.device.type != "cuda" or x in self.of_cpu)

    def _rounded(self, x: Any, low: torch.dtype) -> Any:
        """Returns a value or a number, rounded to the low-precision dtype `low`; a symbolic number becomes a value."""
        if type(x) is Size:
            x = self.full((), x, torch.int64, self.out.device)
        return self.convert(x, low) if isinstance(x, Node) else rounded(x, low)

    def widen(self, x: Node) -> Node:
        """Returns x, converted to the dtype in which eager computes with its dtype."""
        return self.convert(x, compute_dtype(x.meta["val"].dtype))

    def checked_operands(self, func: OpOverload, args: Sequence[Any]) -> Sequence[Any]:
        """Returns the operands, after the checks that eager makes on the CPU before it starts the operator's kernel.

        The returned operands depend on the results of the checks, so that no kernel reads them before the program has
        waited for the checks, or has raised an error (`graph.nodes.range_checks.waits`). Without such checks they are
        `args`.
        """
        assert self.node is not None
        seen: dict[Node, Node] = {}
        for each in ranges_of(func, args) if waits(self.node) else ():
            x = each.operand
            flag = check_node(self.call, each)
            flag = self.broadcast(flag, shape_of(x))
            seen[x] = self.where(flag, self.full_like(x, 0), seen.get(x, x))  # `flag` is False: the check has passed
        return fx.node.map_arg(tuple(args), lambda x: seen.get(x, x)) if seen else args

    def within(self, x: Node, low: float, high: float | None, fault: int) -> Node:
        """Returns x, after a check that raises the error number `fault` if an element is NaN or outside of
        [low, high].
        """
        inside = self.ge(x, low)
        if high is not None:
            inside = self.logical_and(inside, self.le(x, high))
        return self.refuse(x, self.logical_not(inside), fault)

    def dims_of(self, x: Node, dims: Sequence[int] | int | None) -> tuple[int, ...]:
        """Returns `dims` as sorted, non-negative dimensions of x; None and an empty list mean all dimensions."""
        rank = len(x.meta["val"].shape)
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return tuple(range(rank))
        listed = (dims,) if isinstance(dims, int) else dims
        return tuple(sorted({d % rank for d in listed})) if rank else ()


def _promotes_as(operand: Any) -> Any:
    return operand.meta["val"] if isinstance(operand, Node) else operand


def is_empty(shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape has no elements; a symbolic size is assumed not to be 0."""
    return any(same(n, 0) for n in shape)


def as_float(count: int) -> float:
    """Returns a count as a float operand; a symbolic count is returned unchanged."""
    return count if isinstance(count, Size) else float(count)


def common_shape(*nodes: Node) -> tuple[int, ...]:
    """Returns the shape to which the values broadcast.

    Raises:
        CompileError: their shapes do not broadcast.
    """
    shape = broadcast([x.meta["val"] for x in nodes])
    require(shape is not None, f"shapes that do not broadcast: {[shape_of(x) for x in nodes]}")
    assert shape is not None
    return shape


def shape_of(x: Node) -> tuple[int, ...]:
    """Returns the shape of a node's value."""
    return x.meta["val"].shape


def dtype_of(x: Node) -> torch.dtype:
    """Returns the dtype of a node's value."""
    return x.meta["val"].dtype


def device_of(x: Node) -> torch.device:
    """Returns the device of a node's value."""
    return x.meta["val"].device


def rank_of(x: Node) -> int:
    """Returns the number of dimensions of a node's value."""
    return len(x.meta["val"].shape)
