"""The slow reference interpreter of loop programs: the oracle for schedule and codegen.

Runs each node over its whole iteration space at once: an index expression is an int64 tensor over the space, a load is
advanced indexing, an op is the prim's eager reference. Slow and memory-hungry, and nothing like generated code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.errors import CompileError
from smelt.graph.meta import TensorMeta, extent
from smelt.loops.ir import (
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


class Interpreter:
    """An `Ops` handler whose values are tensors over one iteration space."""

    def __init__(self, values: dict[str, torch.Tensor], ranges: Sequence[int]) -> None:
        self.values, self.ranges = values, tuple(ranges)
        self.points: dict[Atom, torch.Tensor] = {}
        index = []
        for d, size in enumerate(self.ranges):
            var = Var(f"i{d}", size)
            shape = [1] * len(self.ranges)
            shape[d] = size
            self.points[var] = torch.arange(size).reshape(shape)
            index.append(variable(var))
        self.index: Index = tuple(index)
        self.inside: list[torch.Tensor] = []

    def number(self, expr: Expr) -> torch.Tensor:
        """The expression over the space, as int64."""
        result = expr.evaluate(self.points)  # type: ignore[arg-type]
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

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Value:
        return torch.tensor(value, dtype=dtype).expand(self.ranges)

    def integer(self, expr: Expr, dtype: torch.dtype) -> Value:
        return self.number(expr).to(dtype)

    def apply(self, op: str, dtype: torch.dtype, *args: Value) -> Value:
        return PRIMS[op].reference(*args)

    def convert(self, value: Value, source: torch.dtype, target: torch.dtype) -> Value:
        return value.to(target)

    def masked(self, conditions: Sequence[Condition], body: Callable[[], Value], other: Value) -> Value:
        mask = torch.ones(self.ranges, dtype=torch.bool)
        for c in conditions:
            x = self.number(c.expr)
            if c.low is not None:
                mask = mask & (x >= c.low)
            if c.high is not None:
                mask = mask & (x < c.high)
            if c.step != 1:
                mask = mask & ((x - (c.low or 0)) % c.step == 0)
        self.inside.append(mask)
        value = body()
        self.inside.pop()
        return torch.where(mask, value, other)

    def indirect(self, value: Value, size: int, wrap: bool) -> Expr:
        place = value.to(torch.int64)
        if wrap:
            place = torch.where(place < 0, place + size, place)
        atom = Runtime(f"r{len(self.points)}", size)
        self.points[atom] = place
        return Expr(((atom, 1),), 0)

    def random(self, seed: Value, stream: int, index: Expr, count: int) -> Value:
        everything = PRIMS["random"].reference(seed.reshape(-1)[0], stream, (count,))
        return everything[self.number(index)]


def interpret(program: LoopProgram, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Run a loop program on real tensors; outputs have the strides of the program's output metas."""
    values: dict[str, Any] = dict(zip(program.inputs, inputs, strict=True))
    for node in program.nodes.values():
        if not isinstance(node, Input):
            values[node.name] = run_node(node, values)
    results: list[torch.Tensor | None] = []
    for output in program.outputs:
        if output.name is None or output.meta is None:
            results.append(None)
            continue
        results.append(laid_out(values[output.name], output.meta))
    return results


def laid_out(value: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """A copy of `value` with the strides of `meta`; strides of 0 (repeated elements) are allowed."""
    space = Interpreter({}, meta.shape)
    places = space.number(flat_index(space.index, meta.stride))
    storage = torch.zeros(extent(meta.shape, meta.stride), dtype=meta.dtype)
    storage[places.reshape(-1)] = value.reshape(-1)
    return storage.as_strided(meta.shape, meta.stride)


def run_node(node: Node, values: dict[str, Any]) -> Any:
    """The value of one node from the values of its inputs."""
    match node:
        case Constant(tensor=tensor):
            return tensor
        case Pointwise(meta=meta, body=body):
            ops = Interpreter(values, meta.shape)
            return body(ops, ops.index).to(meta.dtype).contiguous()
        case Reduction():
            return _reduce(node, values)
        case Scatter():
            return _scatter(node, values)
        case Extern(target=target, args=args, kwargs=kwargs):
            return target(*_resolved(args, values), **_resolved(kwargs, values))
        case Item(inputs=(source,), position=position):
            return values[source][position]
    raise CompileError(f"interpret: node {node}")


def _resolved(value: Any, values: dict[str, Any]) -> Any:
    match value:
        case Ref(name):
            return values[name]
        case tuple() | list():
            return type(value)(_resolved(item, values) for item in value)
        case dict():
            return {key: _resolved(item, values) for key, item in value.items()}
    return value


def _reduce(node: Reduction, values: dict[str, Any]) -> torch.Tensor:
    ops = Interpreter(values, node.source_shape)
    elements = node.body(ops, ops.index).expand(node.source_shape)
    dims = node.dims[0] if node.kind.startswith("arg") else node.dims
    return PRIMS[node.kind].reference(elements, dims).to(node.meta.dtype).reshape(node.meta.shape)


def _scatter(node: Scatter, values: dict[str, Any]) -> torch.Tensor:
    copy = Interpreter(values, node.meta.shape)
    result = node.base(copy, copy.index).clone().reshape(-1)
    ops = Interpreter(values, node.ranges)
    if math.prod(node.ranges) == 0:
        return result.reshape(node.meta.shape)
    flat = torch.zeros(node.ranges, dtype=torch.int64)
    for part, size in zip(node.target(ops, ops.index), node.meta.shape, strict=True):
        flat = flat * size + ops.number(part)
    elements = node.body(ops, ops.index).reshape(-1)
    result.index_put_((flat.reshape(-1),), elements, accumulate=node.accumulate)
    return result.reshape(node.meta.shape)
