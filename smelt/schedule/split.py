"""Splits long reductions with few results in two, so that the first half runs in parallel.

A reduction over n elements becomes a reduction over parts of them (the parts are kept) and a small one over the parts.
The part size depends on shapes only, never on the number of threads, so results do not either. It also bounds how many
additions follow one another, which keeps rounding errors at the level of pairwise summation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt.graph.meta import TensorMeta
from smelt.loops.ir import Body, Index, LoopProgram, Node, Ops, Reduction, Value
from smelt.schedule.dependencies import Names, row_major, trace
from smelt.schedule.group import Place, Role, fresh_index, reduction_roles
from smelt.schedule.realize import Realized

WORK = 32768
"""Elements below which a reduction is left whole."""

PARALLEL = 32
ROWS_PER_PART = 256
ELEMENTS_PER_PART = 8192
MAX_PARTS = 256


def split_reductions(program: LoopProgram, real: Realized, names: Names) -> LoopProgram:
    """The program with long reductions split; new values get buffers in `real`."""
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if isinstance(node, Reduction) and not node.kind.startswith("arg") and math.prod(node.source_shape) >= WORK:
            part, rest = _split(node, program, real, names)
            if part is not None:
                nodes[part.name] = part
                real.stored.add(part.name)
                real.strides[part.name] = row_major(part.meta.shape)
                node = rest
        nodes[name] = node
    return LoopProgram(nodes, program.outputs, program.inputs)


def _split(node: Reduction, program: LoopProgram, real: Realized, names: Names) -> tuple[Reduction | None, Reduction]:
    shape = node.source_shape
    index, order = fresh_index(shape, names)
    reads = trace(program, real.stored - {node.name}, node.body, index)
    sized = iter(order)
    by_dim = [next(sized) if n != 1 else None for n in shape]
    reduced = [v for d, v in enumerate(by_dim) if v is not None and d in node.dims]
    kept = [v for d, v in enumerate(by_dim) if v is not None and d not in node.dims]
    roles, place = reduction_roles(node, reads.accesses, reduced, kept, program, real)
    outer = math.prod(v.size for v in kept if roles[v] is Role.KEPT)
    if outer >= PARALLEL:
        return None, node
    part = part_size([shape[d] for d in node.dims], place, math.prod(v.size for v in kept) // max(outer, 1))
    if part is None:
        return None, node
    return _halves(node, part)


def part_size(sizes: Sequence[int], place: Place, width: int) -> int | None:
    """How many elements along the reduced dimensions one part sums, or None to leave it whole.

    A part is whole trailing dimensions times a divisor of the next, so that parts need no divisions to find.
    """
    total = math.prod(sizes)
    limit, least = (ROWS_PER_PART, 16) if place is Place.COLUMN else (ELEMENTS_PER_PART, 1024)
    wanted = min(limit, max(least, total // PARALLEL))
    best: int | None = None
    suffix = 1
    for size in reversed(sizes):
        for divisor in range(1, size + 1):
            if size % divisor == 0:
                part = suffix * divisor
                parts = total // part
                if 2 <= parts <= MAX_PARTS * (4 if width <= 64 else 1) and part > 1:
                    if best is None or abs(math.log(part / wanted)) < abs(math.log(best / wanted)):
                        best = part
        suffix *= size
    return best


def _halves(node: Reduction, part: int) -> tuple[Reduction, Reduction]:
    """(the reduction of parts, the reduction over them)."""
    dims, left = list(node.dims), part
    whole: list[int] = []
    while dims and left % node.source_shape[dims[-1]] == 0 and left >= node.source_shape[dims[-1]]:
        whole.insert(0, dims.pop())
        left //= node.source_shape[whole[0]]
    cut = dims.pop() if left > 1 else None
    shape: list[int] = []
    folded: list[int] = []
    chunks: list[int] = []
    for d, size in enumerate(node.source_shape):
        if d == cut:
            chunks.append(len(shape))
            folded.append(len(shape) + 1)
            shape += [size // left, left]
            continue
        if d in whole:
            folded.append(len(shape))
        elif d in node.dims:
            chunks.append(len(shape))
        shape.append(size)
    # chunk dimensions first, so that the kept ones stay contiguous in the buffer of the parts
    kept = [d for d in range(len(shape)) if d not in folded and d not in chunks]
    order = [*chunks, *kept, *folded]
    sizes = tuple(shape[d] for d in order)
    made = sizes[: len(chunks) + len(kept)]
    # parts of a low-precision sum stay in float32: it is rounded once, at the end
    wide = torch.float32 if node.dtype in (torch.bfloat16, torch.float16) else node.dtype
    meta = TensorMeta(made, wide, row_major(made), node.meta.device)
    name = f"{node.name}_part"
    first = _part(node, order, cut, left, wide)
    folded = list(range(len(made), len(sizes)))
    partial = Reduction(name, meta, node.inputs, first, node.kind, sizes, tuple(folded), wide)

    def body(ops: Ops, index: Index) -> Value:
        return ops.load(name, index)

    over = tuple(range(len(chunks)))
    rest = replace(node, inputs=(name,), body=body, source_shape=made, dims=over, dtype=wide)
    return partial, rest


def _part(node: Reduction, order: Sequence[int], cut: int | None, size: int, dtype: torch.dtype) -> Body:
    """The body of `node` for an index whose dimensions are permuted by `order`, with dimension `cut` in two pieces."""
    inverse = sorted(range(len(order)), key=order.__getitem__)

    def body(ops: Ops, index: Index) -> Value:
        straight = tuple(index[d] for d in inverse)
        if cut is not None:
            straight = (*straight[:cut], straight[cut] * size + straight[cut + 1], *straight[cut + 2 :])
        return ops.convert(node.body(ops, straight), node.dtype, dtype)

    return body
