"""The reference interpreter of loop programs, against which tests compare generated code.

It runs each node over its whole iteration space at once: an index expression is an int64 tensor over the space, a load
is advanced indexing, an operation is the prim's eager reference. It is slow, needs much memory, and shares no code with
the generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import TensorMeta, extent
from smelt.loops.facts import FOLDS
from smelt.loops.ir import (
    REFUSE,
    Condition,
    Constant,
    Extern,
    Index,
    Input,
    Item,
    LoopProgram,
    Node,
    Pointwise,
    Reduction,
    Ref,
    Scatter,
    Value,
)
from smelt.prims.table import PRIMS
from smelt.shapes.expr import Atom, Expr, Runtime, Var, flat_index, variable
from smelt.shapes.size import IntLike, Size, Symbol, evaluate, value_in

Sizes = Mapping[Symbol, int]
"""The values of the symbols in a run."""

STATIC: Sizes = {}

CPU = torch.device("cpu")


class Interpreter:
    """An `Ops` handler whose values are tensors over one iteration space."""

    def __init__(
        self, values: Mapping[str, torch.Tensor], ranges: Sequence[IntLike], sizes: Sizes, device: torch.device = CPU
    ) -> None:
        self.values, self.sizes, self.device = values, sizes, device
        self.ranges = tuple(value_in(n, sizes) for n in ranges)
        self.points: dict[Atom, torch.Tensor] = {}
        index = []
        for d, (size, form) in enumerate(zip(self.ranges, ranges, strict=True)):
            var = Var(f"i{d}", form)
            shape = [1] * len(self.ranges)
            shape[d] = size
            self.points[var] = torch.arange(size, device=device).reshape(shape)
            index.append(variable(var))
        self.index: Index = tuple(index)
        self.inside: list[torch.Tensor] = []

    def number(self, expr: Expr) -> torch.Tensor:
        """Returns the values of an expression over the space, as int64."""
        result: Any = expr.evaluate(self.points, self.sizes)  # type: ignore[arg-type]
        if not isinstance(result, torch.Tensor):
            return torch.full((), result, dtype=torch.int64, device=self.device).expand(self.ranges)
        return result.to(torch.int64).expand(self.ranges)

    def load(self, name: str, index: Index) -> Value:
        tensor = self.values[name]
        if not index:
            return tensor.expand(self.ranges)
        view = None if self.inside else self.view(tensor, index)
        if view is not None:
            return view
        positions = [self.number(each) for each in index]
        if self.inside:
            positions = [p.clamp(0, max(n - 1, 0)) for p, n in zip(positions, tensor.shape, strict=True)]
        if tensor.numel() == 0:
            return torch.zeros(self.ranges, dtype=tensor.dtype, device=self.device)
        return tensor[tuple(positions)]

    def view(self, tensor: torch.Tensor, index: Index) -> torch.Tensor | None:
        """Returns the elements as a strided view, which needs no memory for indices; None if the index is not
        linear.
        """
        offset = flat_index(index, tensor.stride())
        if not offset.is_linear() or tensor.numel() == 0:
            return None
        strides = [value_in(offset.coefficient(var), self.sizes) for var in self.points if isinstance(var, Var)]
        start = value_in(offset.const, self.sizes)
        if start < 0 or min(strides, default=0) < 0:
            return None
        return tensor.as_strided(self.ranges, strides, tensor.storage_offset() + start)

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> Value:
        if isinstance(value, Size):
            value = evaluate(value, self.sizes)
        number = torch.tensor(value, dtype=dtype)
        return torch.full((), number.item(), dtype=dtype, device=self.device).expand(self.ranges)

    def integer(self, expr: Expr, dtype: torch.dtype) -> Value:
        return self.number(expr).to(dtype)

    def apply(self, op: str, dtype: torch.dtype, *args: Value) -> Value:
        if op.startswith(REFUSE):
            return PRIMS["refuse"].reference(*args, int(op.removeprefix(REFUSE)))
        return PRIMS[op].reference(*args)

    def convert(self, value: Value, source: torch.dtype, target: torch.dtype) -> Value:
        return value.to(target)

    def masked(self, conditions: Sequence[Condition], body: Callable[[], Value], other: Value) -> Value:
        mask = torch.ones(self.ranges, dtype=torch.bool, device=self.device)
        for c in conditions:
            x = self.number(c.expr)
            low, high = (None if n is None else value_in(n, self.sizes) for n in (c.low, c.high))
            step = value_in(c.step, self.sizes)
            if low is not None:
                mask = mask & (x >= low)
            if high is not None:
                mask = mask & (x < high)
            if step != 1:
                mask = mask & ((x - (low or 0)) % step == 0)
        self.inside.append(mask)
        value = body()
        self.inside.pop()
        return torch.where(mask, value, other)

    def indirect(self, value: Value, size: IntLike, wrap: bool) -> Expr:
        position = value.to(torch.int64)
        if wrap:
            position = torch.where(position < 0, position + value_in(size, self.sizes), position)
        atom = Runtime(f"r{len(self.points)}", size)
        self.points[atom] = position
        return Expr(((atom, 1),), 0)

    def random(self, seed: Value, stream: int, index: Expr, count: IntLike) -> Value:
        if seed.numel() == 0:  # without elements the seed may be missing as well
            return torch.zeros(self.ranges, device=self.device)
        everything = PRIMS["random"].reference(seed.reshape(-1)[0], stream, (value_in(count, self.sizes),))
        return everything[self.number(index)]


Space = Callable[[Mapping[str, Any], Sequence[IntLike], Sizes], Interpreter]
"""Function (values, ranges, sizes) -> the handler of this iteration space."""


def interpret(program: LoopProgram, inputs: Sequence[Any]) -> list[Any]:
    """Run a loop program on tensors, followed by the values of its symbols; returns its outputs.

    Outputs have the strides of the program's output metas.
    """
    count = len(program.inputs)
    values: dict[str, Any] = dict(zip(program.inputs, inputs[:count], strict=True))
    sizes: Sizes = dict(zip(program.symbols, inputs[count:], strict=True))
    for node in program.nodes.values():
        if not isinstance(node, Input):
            values[node.name] = run_node(node, values, sizes)
    results: list[Any] = []
    for output in program.outputs:
        if output.name is None or output.meta is None:
            results.append(None if output.number is None else value_in(output.number, sizes))
            continue
        results.append(laid_out(values[output.name], output.meta, sizes))
    return results


def laid_out(value: torch.Tensor, meta: TensorMeta, sizes: Sizes = STATIC) -> torch.Tensor:
    """Returns a copy of `value` with the strides of `meta`; strides of 0 (repeated elements) are allowed."""
    shape, stride = _resolved(meta.shape, {}, sizes), _resolved(meta.stride, {}, sizes)
    space = Interpreter({}, shape, sizes)
    positions = space.number(flat_index(space.index, stride))
    storage = torch.zeros(extent(shape, stride), dtype=meta.dtype)
    storage[positions.reshape(-1)] = value.reshape(-1)
    return storage.as_strided(shape, stride)


def run_node(node: Node, values: dict[str, Any], sizes: Sizes, make: Space = Interpreter) -> Any:
    """Returns the value of one node, computed from the values of its inputs.

    Args:
        make: function that makes the handler of an iteration space.
    """
    match node:
        case Constant(tensor=tensor):
            return tensor
        case Pointwise(meta=meta, body=body):
            ops = make(values, meta.shape, sizes)
            return body(ops, ops.index).to(meta.dtype).contiguous()
        case Reduction():
            return _reduce(node, values, sizes, make)
        case Scatter():
            return _scatter(node, values, sizes, make)
        case Extern(target=target, args=args, kwargs=kwargs):
            return target(*_resolved(args, values, sizes), **_resolved(kwargs, values, sizes))
        case Item(inputs=(source,), position=position):
            return values[source][position]
    raise CompileError(f"interpret: node {node}")


def _resolved(value: Any, values: dict[str, Any], sizes: Sizes) -> Any:
    match value:
        case Ref(name):
            return values[name]
        case Size():
            return evaluate(value, sizes)
        case tuple() | list():
            return type(value)(_resolved(item, values, sizes) for item in value)
        case dict():
            return {key: _resolved(item, values, sizes) for key, item in value.items()}
    return value


def _reduce(node: Reduction, values: dict[str, Any], sizes: Sizes, make: Space) -> torch.Tensor:
    ops = make(values, node.source_shape, sizes)
    padding = None if node.ragged is None else _beyond_last_chunk(ops, *node.ragged)
    if padding is not None:
        ops.inside.append(~padding)  # the excluded elements read any element, and are replaced below
    elements = node.body(ops, ops.index).expand(ops.ranges)
    if padding is not None:
        elements = elements.masked_fill(padding, _neutral(node.kind, elements.dtype))
    shape = _resolved(node.meta.shape, values, sizes)
    dims = node.dims[0] if FOLDS[node.kind].finds else node.dims
    return PRIMS[node.kind].reference(elements, dims).to(node.meta.dtype).reshape(shape)


def _beyond_last_chunk(ops: Interpreter, high: int, low: int, total: IntLike) -> torch.Tensor:
    """Returns a mask of the indices beyond the end of a short last chunk (`ragged` of `Reduction`)."""
    position = ops.number(ops.index[high]) * ops.ranges[low] + ops.number(ops.index[low])
    return position >= value_in(total, ops.sizes)


def _neutral(kind: str, dtype: torch.dtype) -> bool | int | float:
    """Returns the neutral element of a fold."""
    fold = FOLDS[kind]
    if fold.neutral is not None:
        return fold.neutral
    lowest = fold.combine == "max"
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def _scatter(node: Scatter, values: dict[str, Any], sizes: Sizes, make: Space) -> torch.Tensor:
    copy = make(values, node.meta.shape, sizes)
    return scattered(node, node.base(copy, copy.index).expand(copy.ranges), values, sizes, make)


def scattered(
    node: Scatter, base: torch.Tensor, values: Mapping[str, Any], sizes: Sizes, make: Space = Interpreter
) -> torch.Tensor:
    """Returns a copy of `base` with the node's elements written or added at their target indices."""
    result = base.clone(memory_format=torch.contiguous_format).reshape(-1)
    ops = make(values, node.ranges, sizes)
    if math.prod(ops.ranges) == 0:
        return result.reshape(base.shape)
    flat = torch.zeros(ops.ranges, dtype=torch.int64, device=ops.device)
    for at, size in zip(node.target(ops, ops.index), base.shape, strict=True):
        flat = flat * size + ops.number(at)
    elements = node.body(ops, ops.index).reshape(-1)
    result.index_put_((flat.reshape(-1),), elements, accumulate=node.accumulate)
    return result.reshape(base.shape)
