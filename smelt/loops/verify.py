"""Checks a loop program: bodies read only their nodes' inputs, at indices of the right rank, with matching types.

The pipeline runs it after lowering under SMELT_STRICT. Each body is run once, by a handler whose values are dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import TensorMeta
from smelt.loops.facts import BOOLEAN, FOLDS
from smelt.loops.ir import (
    REFUSE,
    Body,
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
    Scatter,
    references,
)
from smelt.shapes.expr import Expr, Runtime, Var, variable
from smelt.shapes.size import IntLike, Size, known_equal


class InvalidLoops(CompileError):
    """Raised for a loop program that violates an invariant."""


def verify(program: LoopProgram) -> None:
    """Check the invariants of a loop program.

    Raises:
        InvalidLoops: an invariant is violated; the message names the first node, and the invariant.
    """
    seen: dict[str, Node] = {}
    for name, node in program.nodes.items():
        why = _bad_name(name, node, seen) or next(_problems(node, seen), None)
        if why is not None:
            raise InvalidLoops(f"loops: node {name} ({type(node).__name__})", why=why)
        seen[name] = node
    for why in _bad_interface(program):
        raise InvalidLoops("loops: the program", why=why)


def _bad_name(name: str, node: Node, seen: Mapping[str, Node]) -> str | None:
    if node.name != name:
        return f"it says that it is {node.name}"
    missing = [operand for operand in node.inputs if operand not in seen]
    return f"it reads {', '.join(missing)}, which no node before it makes" if missing else None


def _bad_interface(program: LoopProgram) -> Iterator[str]:
    nodes = program.nodes
    inputs = [name for name, node in nodes.items() if isinstance(node, Input)]
    if sorted(inputs) != sorted(program.inputs):
        yield f"its inputs are {program.inputs}, its nodes of that kind {inputs}"
    for output in program.outputs:
        if output.name is None:
            continue
        node = nodes.get(output.name)
        if node is None or not isinstance(node.meta, TensorMeta) or output.meta is None:
            yield f"output {output.name} is no tensor of the program"
        elif node.meta.dtype is not output.meta.dtype:
            yield f"output {output.name} is {node.meta}, promised {output.meta}"
    positions = {name: at for at, name in enumerate(nodes)}
    for later, earlier in program.after.items():
        if not (earlier in positions and later in positions and positions[earlier] < positions[later]):
            yield f"{later} waits for {earlier}, which is not before it"


def _problems(node: Node, nodes: Mapping[str, Node]) -> Iterator[str]:
    match node:
        case Constant(meta=meta, tensor=tensor):
            if meta.dtype is not tensor.dtype or tuple(meta.shape) != tuple(tensor.shape):
                yield f"its tensor is {tensor.dtype} of {tuple(tensor.shape)}, not {meta}"
        case Pointwise(meta=meta, body=body):
            yield from _bad_body(node, nodes, body, meta.shape, meta.dtype)
        case Reduction():
            yield from _bad_reduction(node, nodes)
        case Scatter():
            yield from _bad_scatter(node, nodes)
        case Extern():
            taken = references((node.args, node.kwargs))
            # an extern may list inputs for which it only waits: random draws keep their order
            if not set(taken) <= set(node.inputs):
                yield f"its arguments hold {taken}, its inputs are {node.inputs}"
            if not set(node.shares) <= set(node.inputs):
                yield f"it shares memory with {node.shares}, its inputs are {node.inputs}"
        case Item(meta=meta, inputs=(source,), position=position):
            metas = nodes[source].meta
            if not isinstance(metas, tuple) or not position < len(metas) or metas[position] != meta:
                yield f"it is {meta}, result {position} of {metas}"


def _bad_reduction(node: Reduction, nodes: Mapping[str, Node]) -> Iterator[str]:
    if node.kind not in FOLDS:
        yield f"no fold is called {node.kind}"
    if not all(0 <= d < len(node.source_shape) for d in node.dims):
        yield f"it folds dimensions {node.dims} of {node.source_shape}"
    kept = [n for d, n in enumerate(node.source_shape) if d not in node.dims]
    if not _same_shape(kept, node.meta.shape):
        yield f"what it keeps is {kept}, its shape {node.meta.shape}"
    yield from _bad_body(node, nodes, node.body, node.source_shape, node.dtype)


def _bad_scatter(node: Scatter, nodes: Mapping[str, Node]) -> Iterator[str]:
    yield from _bad_body(node, nodes, node.base, node.meta.shape, node.meta.dtype)
    yield from _bad_body(node, nodes, node.body, node.ranges, node.meta.dtype)
    if not all(0 <= d < len(node.ranges) for d in node.parallel):
        yield f"dimensions {node.parallel} of {node.ranges} are its own"
    types = _Types(nodes, node.inputs)
    target = node.target(types, _index(node.ranges))
    yield from types.problems
    if len(target) != len(node.meta.shape):
        yield f"it writes at {len(target)} indices into {node.meta}"


def _bad_body(
    node: Node, nodes: Mapping[str, Node], body: Body, shape: Sequence[IntLike], dtype: torch.dtype
) -> Iterator[str]:
    types = _Types(nodes, node.inputs)
    made = body(types, _index(shape))
    yield from types.problems
    if made is not dtype:
        yield f"its body makes {made}, it is {dtype}"


def _same_shape(a: Sequence[IntLike], b: Sequence[IntLike]) -> bool:
    return len(a) == len(b) and all(map(known_equal, a, b))


def _index(shape: Sequence[IntLike]) -> Index:
    return tuple(variable(Var(f"i{d}", n)) for d, n in enumerate(shape))


class _Types:
    """An `Ops` handler whose values are dtypes. `problems`: errors found in the body."""

    def __init__(self, nodes: Mapping[str, Node], inputs: Sequence[str]) -> None:
        self.nodes, self.inputs = nodes, inputs
        self.problems: list[str] = []

    def load(self, name: str, index: Index) -> torch.dtype | None:
        meta = self.nodes[name].meta if name in self.inputs else None
        if not isinstance(meta, TensorMeta):
            self.problems.append(f"it reads {name}, its inputs are {tuple(self.inputs)}")
            return None
        if len(index) != len(meta.shape):
            self.problems.append(f"it reads {name}{list(map(str, index))}, which is {meta}")
        return meta.dtype

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def integer(self, expr: Expr, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def apply(self, op: str, dtype: torch.dtype, *args: torch.dtype) -> torch.dtype:
        operands = args[1:] if op == "where" else args[:1] if op.startswith(REFUSE) else args
        if any(arg is not dtype for arg in operands):
            self.problems.append(f"{op} of {dtype} is applied to {', '.join(map(str, operands))}")
        if op == "where" and args[0] is not torch.bool:
            self.problems.append(f"where chooses by {args[0]}")
        return torch.bool if op in BOOLEAN else dtype

    def convert(self, value: torch.dtype, source: torch.dtype, target: torch.dtype) -> torch.dtype:
        if value is not source:
            self.problems.append(f"{value} is converted as if it were {source}")
        return target

    def masked(
        self, conditions: Sequence[Condition], body: Callable[[], torch.dtype], other: torch.dtype
    ) -> torch.dtype:
        made = body()
        if made is not other:
            self.problems.append(f"{made} where a condition holds, else {other}")
        return made

    def indirect(self, value: torch.dtype, size: IntLike, wrap: bool) -> Expr:
        if value.is_floating_point or value is torch.bool:
            self.problems.append(f"{value} is an index")
        return Expr(((Runtime(f"r{len(self.problems)}", size), 1),), 0)

    def random(self, seed: torch.dtype, stream: int, index: Expr, count: IntLike) -> torch.dtype:
        if seed is not torch.int64:
            self.problems.append(f"the seed is {seed}")
        return torch.float32
