"""Lowers a prim graph to a loop program. Prims without a lowering, and ATen overloads, become Extern nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.base.errors import CompileError
from smelt.graph.ir.aliasing import shared_operands
from smelt.graph.ir.meta import TensorMeta, contiguous_stride, meta_of
from smelt.graph.ir.schema import is_collective, is_random, is_wait
from smelt.loops import indexing, movement, pointwise, reductions
from smelt.loops.ir import (
    Constant,
    Extern,
    Input,
    Item,
    LoopProgram,
    Node,
    Output,
    Pointwise,
    Ref,
    Scatter,
    references,
)
from smelt.loops.registry import LOWERINGS, Operand
from smelt.prims.known_sizes import with_known_sizes
from smelt.prims.table import Prim
from smelt.shapes.size import Size, Symbol, as_symbol, same, same_all

FAMILIES = (pointwise, movement, reductions, indexing)
"""The modules whose import fills LOWERINGS."""


def lower(gm: fx.GraphModule, atomic_words: bool = False) -> LoopProgram:
    """Returns the loop program of a prim graph.

    Args:
        gm: placeholders, get_attr tensors, prims and ATen overloads; every node has `meta["val"]`.
        atomic_words: whether atomic additions exist only for 32 bits and more, as on a GPU.

    Raises:
        CompileError: a node is none of these.
    """
    nodes: dict[str, Node] = {}
    inputs: list[str] = []
    outputs: list[Output] = []
    symbols: list[Symbol] = []
    calls: dict[str, tuple[fx.Node, int]] = {}
    order = _ProgramOrder()
    # on a GPU each write would be a launch and a copy
    slice_writes = set() if atomic_words else _long_slice_writes(gm.graph)
    for node in gm.graph.nodes:
        match node.op:
            case "placeholder" if isinstance(node.meta["val"], Size):
                symbols.append(_symbol(node, symbols))
            case "placeholder":
                if symbols:
                    raise CompileError(f"loops: the tensor {node.name} comes after the symbols")
                nodes[node.name] = Input(node.name, with_known_sizes(node.meta["val"]))
                inputs.append(node.name)
            case "get_attr":
                nodes[node.name] = _constant(gm, node)
            case "call_function":
                lowered = _lower_slice_write(node) if node in slice_writes else _lower_call(node)
                lowered = order.kept(lowered, nodes)
                widened = {n.name: n for n in _widened(lowered, atomic_words)}
                calls |= _made_of(node, widened)
                nodes |= widened
            case "output":
                outputs = [_output(value) for value in node.args[0]]
            case other:
                raise CompileError(f"loops: fx node {node.name} has op {other!r}")
    return LoopProgram(nodes, outputs, inputs, symbols, _waits(gm.graph, nodes), calls)


def _waits(graph: fx.Graph, nodes: Container[str]) -> dict[str, str]:
    """Returns for some nodes a node for which they wait without reading it."""
    return {n.name: n.meta["after"] for n in graph.nodes if n.meta.get("after") in nodes}


def _made_of(node: fx.Node, names: Iterable[str]) -> dict[str, tuple[fx.Node, int]]:
    """Returns, for each node to which a call was lowered, the call and the node's index among the call's nodes."""
    return {name: (node, step) for step, name in enumerate(names)}


def _symbol(node: fx.Node, known: Sequence[Symbol]) -> Symbol:
    """Returns the symbol of a placeholder: of two symbols that were found to be equal, the one that sizes use."""
    symbol = as_symbol(node.meta["val"])
    if symbol is None:
        raise CompileError(f"loops: the placeholder {node.name} is {node.meta['val']}, not one symbol")
    other = as_symbol(with_known_sizes(node.meta["val"]))
    return symbol if other is None or other in known else other


class _ProgramOrder:
    """Makes draws from PyTorch's generator, and collectives, keep the program's order: each reads the one before."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def kept(self, node: Node, nodes: Mapping[str, Node]) -> Node:
        """Returns the node, with an earlier one as an input if it has to run after that.

        Args:
            nodes: the earlier nodes by name.
        """
        if not isinstance(node, Extern):
            return node
        if is_random(node.target):
            return self._next("draw", node)
        if is_wait(node.target):  # until then, the collective reads its operands
            begun = [nodes[name] for name in node.inputs]
            return _reading(node, [each for made in begun if isinstance(made, Extern) for each in made.inputs])
        return self._next("collective", node) if is_collective(node.target) else node

    def _next(self, kind: str, node: Extern) -> Extern:
        earlier = self._last.get(kind)
        self._last[kind] = node.name
        return node if earlier is None else _reading(node, [earlier])


def _reading(node: Extern, names: Sequence[str]) -> Extern:
    return replace(node, inputs=tuple(dict.fromkeys((*node.inputs, *names))))


def _output(value: Any) -> Output:
    value = with_known_sizes(value)
    if isinstance(value, fx.Node):
        return Output(value.name, with_known_sizes(value.meta["val"]))
    return Output(None, None, value if isinstance(value, (int, Size)) else None)


def _constant(gm: fx.GraphModule, node: fx.Node) -> Constant:
    value: Any = gm
    for name in str(node.target).split("."):
        value = getattr(value, name)
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"loops: attribute {node.target} is a {type(value).__name__}, not a tensor")
    return Constant(node.name, node.meta.get("val") or meta_of(value), value.detach())


def _stacked_tensors(node: fx.Node) -> list[fx.Node] | None:
    """Returns the tensors of a concatenation of many tensors that is a stack (each was only reshaped to have a
    dimension of size 1), or None.

    A view of each tensor would take longer than its copy.
    """
    if not (isinstance(node.target, Prim) and node.target.name == "cat") or _is_unsupported(node.meta["val"]):
        return None
    tensors, dim = node.args
    assert isinstance(tensors, (tuple, list)) and isinstance(dim, int)
    found = []
    for tensor in tensors if len(tensors) > movement.MAX_LOOP_OPERANDS else ():
        assert isinstance(tensor, fx.Node)
        if not (isinstance(tensor.target, Prim) and tensor.target.name == "reshape"):
            return None
        source, shape = tensor.all_input_nodes[0], tensor.meta["val"].shape
        kept = (*shape[:dim], *shape[dim + 1 :])
        dense = same_all(source.meta["val"].stride, contiguous_stride(kept))
        if not same(shape[dim], 1) or not same_all(source.meta["val"].shape, kept) or not dense:
            return None
        found.append(source)
    return found or None


def _long_slice_writes(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes of long runs of successive slice writes to one value that has no other readers in between."""
    length: dict[fx.Node, int] = {}
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if not _is_slice_write(node):
            continue
        before = node.args[0]
        assert isinstance(before, fx.Node)
        alone = len(before.users) == 1 and node.args.count(before) == 1
        length[node] = 1 + (length.get(before, 0) if alone else 0)
    for node in reversed(length):
        if length[node] > movement.MAX_LOOP_OPERANDS or node in found:
            found |= {node, node.all_input_nodes[0]} if length[node] > 1 else {node}
    return found


def _is_slice_write(node: fx.Node) -> bool:
    is_scatter = isinstance(node.target, Prim) and node.target.name == "slice_scatter"
    return is_scatter and not _is_unsupported(node.meta["val"])


def _lower_slice_write(node: fx.Node) -> Node:
    return movement.write_slice(node.name, with_known_sizes(node.meta["val"]), *(_operands(a) for a in node.args))


def _lower_call(node: fx.Node) -> Node:
    target, meta = node.target, with_known_sizes(node.meta["val"])
    if target is operator.getitem:
        source, position = node.args
        assert isinstance(source, fx.Node) and isinstance(position, int)
        return Item(node.name, meta, (source.name,), position)
    stacked = _stacked_tensors(node)
    if stacked is not None:
        refs, dim = [Ref(n.name) for n in stacked], node.args[1]
        inputs = tuple(dict.fromkeys(r.name for r in refs))
        return Extern(node.name, meta, inputs, torch.ops.aten.stack.default, (refs, dim))
    name = getattr(target, "name", None) if isinstance(target, Prim) else None
    if name in LOWERINGS and not _is_unsupported(meta):
        return LOWERINGS[name](node.name, meta, *(_operands(a) for a in node.args))
    return _extern(node, meta)


def _widened(node: Node, atomic_words: bool) -> list[Node]:
    """Returns the nodes of a scatter, in a wider dtype and with a conversion of its result if it accumulates narrow
    values.

    Low-precision floats are added in float32, to be rounded once; narrow integers and bools in 32 bits if atomics need
    that (the conversion reduces modulo 2^width; a sum of bools is true if any of them is); single float32 elements in
    float64 on a GPU, for eager's precision: its kernel sorts the additions by target element and sums those of one
    target as a tree.
    """
    if not isinstance(node, Scatter) or not node.accumulate:
        return [node]
    dtype = node.meta.dtype
    if dtype in (torch.bfloat16, torch.float16):
        wide_dtype = torch.float32
    elif atomic_words and dtype in (torch.bool, torch.uint8, torch.int8, torch.int16):
        wide_dtype = torch.int32
    elif atomic_words and dtype is torch.float32 and _adds_single_elements(node):
        wide_dtype = torch.float64
    else:
        return [node]
    wide, base, body = f"{node.name}_wide", node.base, node.body
    scatter = replace(
        node,
        name=wide,
        meta=replace(node.meta, dtype=wide_dtype),
        base=lambda ops, index: ops.convert(base(ops, index), dtype, wide_dtype),
        body=lambda ops, index: ops.convert(body(ops, index), dtype, wide_dtype),
    )
    rounded = Pointwise(
        node.name,
        node.meta,
        (wide,),
        lambda ops, index: ops.convert(ops.load(wide, index), wide_dtype, dtype),
        "convert",
    )
    return [scatter, rounded]


def _adds_single_elements(node: Scatter) -> bool:
    """Whether a scatter adds elements, not rows, and its result is not much larger than their number."""
    size, count = node.meta.numel, math.prod(node.ranges)
    symbolic = isinstance(size, Size) or isinstance(count, Size)
    small = symbolic or size <= max(MAX_WIDENED_ELEMENTS, MAX_WIDENED_RATIO * count)
    return small and all(same(node.ranges[d], 1) for d in node.parallel)


MAX_WIDENED_ELEMENTS, MAX_WIDENED_RATIO = 1 << 20, 16
"""Maximum number of elements of a scatter's result that is accumulated in twice the width: in total, or per added
element. Larger results would take too much time.
"""


def _is_unsupported(meta: Any) -> bool:
    """Whether a tensor has an element type, such as a complex one, that generated kernels do not support."""
    return isinstance(meta, TensorMeta) and meta.dtype not in SUPPORTED


SUPPORTED = frozenset(
    {
        torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    }
)  # fmt: skip
"""Dtypes that generated kernels support."""


def _operands(value: Any) -> Any:
    if isinstance(value, fx.Node) and not isinstance(value.meta["val"], Size):
        return Operand(value.name, with_known_sizes(value.meta["val"]))
    if isinstance(value, (tuple, list)):
        return tuple(_operands(item) for item in value)
    return with_known_sizes(value)


def _extern(node: fx.Node, meta: Any) -> Extern:
    target = node.target
    if isinstance(target, Prim) and target.kernel is not None:
        by_position, by_name = target.kernel_arguments(node.args)
        target, args, kwargs = target.kernel, _references(by_position), _references(by_name)
    else:
        args, kwargs = _references(node.args), _references(node.kwargs)
    inputs = tuple(dict.fromkeys(n.name for n in node.all_input_nodes if not isinstance(n.meta["val"], Size)))
    parameters = target.parameters if isinstance(target, Prim) else ()
    shared = references(shared_operands(target, args, kwargs))
    line = str(node.meta.get("line") or "") if is_collective(target) else ""  # its errors name it
    return Extern(node.name, meta, inputs, target, args, kwargs, parameters, tuple(dict.fromkeys(shared)), line)


def _references(value: Any) -> Any:
    match value:
        case fx.Node():
            return with_known_sizes(value) if isinstance(value.meta["val"], Size) else Ref(value.name)
        case Size():
            return with_known_sizes(value)
        case tuple():
            return tuple(map(_references, value))
        case list():
            return list(map(_references, value))
        case dict():
            return {key: _references(item) for key, item in value.items()}
    return value
