"""The slow reference interpreter of loop programs: the oracle for schedule and codegen.

Runs each node over its whole iteration space at once: an index expression is an int64 tensor over the space, a load is
advanced indexing, an op is the prim's eager reference. Slow and memory-hungry, and nothing like generated code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import CompileError
from smelt.graph.meta import TensorMeta, extent
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
"""The values of the symbols in this run."""

STATIC: Sizes = {}


class Interpreter:
    """An `Ops` handler whose values are tensors over one iteration space."""

    def __init__(self, values: dict[str, torch.Tensor], ranges: Sequence[IntLike], sizes: Sizes) -> None:
        self.values, self.sizes = values, sizes
        self.ranges = tuple(value_in(n, sizes) for n in ranges)
        self.points: dict[Atom, torch.Tensor] = {}
        index = []
        for d, (size, form) in enumerate(zip(self.ranges, ranges, strict=True)):
            var = Var(f"i{d}", form)
            shape = [1] * len(self.ranges)
            shape[d] = size
            self.points[var] = torch.arange(size).reshape(shape)
            index.append(variable(var))
        self.index: Index = tuple(index)
        self.inside: list[torch.Tensor] = []

    def number(self, expr: Expr) -> torch.Tensor:
        """The expression over the space, as int64."""
        result = expr.evaluate(self.points, self.sizes)  # type: ignore[arg-type]
        return torch.as_tensor(result, dtype=torch.int64).expand(self.ranges)

    def load(self, name: str, index: Index) -> Value:
        tensor = self.values[name]
        if not index:
            return tensor.expand(self.ranges)
        places = [self.number(part) for part in index]
        if self.inside:
            places = [p.clamp(0, max(n - 1, 0)) for p, n in zip(places, tensor.shape, strict=True)]
        if tensor.numel() == 0:
            return torch.zeros(self.ranges, dtype=tensor.dtype)
        return tensor[tuple(places)]

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> Value:
        if isinstance(value, Size):
            value = evaluate(value, self.sizes)
        return torch.tensor(value, dtype=dtype).expand(self.ranges)

    def integer(self, expr: Expr, dtype: torch.dtype) -> Value:
        return self.number(expr).to(dtype)

    def apply(self, op: str, dtype: torch.dtype, *args: Value) -> Value:
        if op.startswith(REFUSE):
            return PRIMS["refuse"].reference(*args, int(op.removeprefix(REFUSE)))
        return PRIMS[op].reference(*args)

    def convert(self, value: Value, source: torch.dtype, target: torch.dtype) -> Value:
        return value.to(target)

    def masked(self, conditions: Sequence[Condition], body: Callable[[], Value], other: Value) -> Value:
        mask = torch.ones(self.ranges, dtype=torch.bool)
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
        place = value.to(torch.int64)
        if wrap:
            place = torch.where(place < 0, place + value_in(size, self.sizes), place)
        atom = Runtime(f"r{len(self.points)}", size)
        self.points[atom] = place
        return Expr(((atom, 1),), 0)

    def random(self, seed: Value, stream: int, index: Expr, count: IntLike) -> Value:
        everything = PRIMS["random"].reference(seed.reshape(-1)[0], stream, (value_in(count, self.sizes),))
        return everything[self.number(index)]


def interpret(program: LoopProgram, inputs: Sequence[Any]) -> list[Any]:
    """Run a loop program on real tensors, followed by the values of its symbols.

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
    """A copy of `value` with the strides of `meta`; strides of 0 (repeated elements) are allowed."""
    shape, stride = _resolved(meta.shape, {}, sizes), _resolved(meta.stride, {}, sizes)
    space = Interpreter({}, shape, sizes)
    places = space.number(flat_index(space.index, stride))
    storage = torch.zeros(extent(shape, stride), dtype=meta.dtype)
    storage[places.reshape(-1)] = value.reshape(-1)
    return storage.as_strided(shape, stride)


def run_node(node: Node, values: dict[str, Any], sizes: Sizes) -> Any:
    """The value of one node from the values of its inputs."""
    match node:
        case Constant(tensor=tensor):
            return tensor
        case Pointwise(meta=meta, body=body):
            ops = Interpreter(values, meta.shape, sizes)
            return body(ops, ops.index).to(meta.dtype).contiguous()
        case Reduction():
            return _reduce(node, values, sizes)
        case Scatter():
            return _scatter(node, values, sizes)
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


def _reduce(node: Reduction, values: dict[str, Any], sizes: Sizes) -> torch.Tensor:
    ops = Interpreter(values, node.source_shape, sizes)
    elements = node.body(ops, ops.index).expand(ops.ranges)
    shape = _resolved(node.meta.shape, values, sizes)
    dims = node.dims[0] if node.kind.startswith("arg") else node.dims
    return PRIMS[node.kind].reference(elements, dims).to(node.meta.dtype).reshape(shape)


def _scatter(node: Scatter, values: dict[str, Any], sizes: Sizes) -> torch.Tensor:
    copy = Interpreter(values, node.meta.shape, sizes)
    result = node.base(copy, copy.index).clone().reshape(-1)
    ops = Interpreter(values, node.ranges, sizes)
    if math.prod(ops.ranges) == 0:
        return result.reshape(copy.ranges)
    flat = torch.zeros(ops.ranges, dtype=torch.int64)
    for part, size in zip(node.target(ops, ops.index), copy.ranges, strict=True):
        flat = flat * size + ops.number(part)
    elements = node.body(ops, ops.index).reshape(-1)
    result.index_put_((flat.reshape(-1),), elements, accumulate=node.accumulate)
    return result.reshape(copy.ranges)
