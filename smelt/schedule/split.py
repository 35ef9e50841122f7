"""Splits long reductions with few results in two, so that the first half runs in parallel.

A reduction over n elements becomes a reduction over parts of them (the parts are kept) and a small one over the parts.
The part size depends on shapes only, never on the number of threads, so results do not either. It also bounds how many
additions follow one another, which keeps rounding errors at the level of pairwise summation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.meta import TensorMeta
from smelt.loops.ir import Body, Condition, Index, LoopProgram, Node, Ops, Reduction, Value
from smelt.schedule.dependencies import Names, row_major, trace
from smelt.schedule.group import Place, Role, fresh_index, reduction_roles
from smelt.schedule.realize import Realized
from smelt.shapes.expr import reshape_index
from smelt.shapes.size import IntLike, divisors, hint, is_symbolic, known_divides, same

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
        if isinstance(node, Reduction) and not node.kind.startswith("arg") and _work(node) >= WORK:
            part, rest = _split(node, program, real, names)
            if part is not None:
                nodes[part.name] = part
                real.stored.add(part.name)
                real.strides[part.name] = row_major(part.meta.shape)
                node = rest
        nodes[name] = node
    return replace(program, nodes=nodes)


def _work(node: Reduction) -> int:
    return math.prod(map(hint, node.source_shape))


def _split(node: Reduction, program: LoopProgram, real: Realized, names: Names) -> tuple[Reduction | None, Reduction]:
    shape = node.source_shape
    index, order = fresh_index(shape, names)
    reads = trace(program, real.stored - {node.name}, node.body, index)
    sized = iter(order)
    by_dim = [None if same(n, 1) else next(sized) for n in shape]
    reduced = [v for d, v in enumerate(by_dim) if v is not None and d in node.dims]
    kept = [v for d, v in enumerate(by_dim) if v is not None and d not in node.dims]
    roles, place = reduction_roles(node, reads.accesses, reduced, kept, program, real)
    outer = math.prod(hint(v.size) for v in kept if roles[v] is Role.KEPT)
    if outer >= PARALLEL:
        return None, node
    sizes = [shape[d] for d in node.dims]
    part = part_size(sizes, place, math.prod(hint(v.size) for v in kept) // max(outer, 1))
    if is_symbolic(sizes) and (part is None or 8 * hint(part) < _wanted(sizes, place)):
        part = _wanted(sizes, place)
        return _masked_halves(node, part) if math.prod(map(hint, sizes)) >= 2 * part else (None, node)
    if part is None:
        return None, node
    return _halves(node, part)


def _wanted(sizes: Sequence[IntLike], place: Place) -> int:
    """Elements that a part should have."""
    limit, least = (ROWS_PER_PART, 16) if place is Place.COLUMN else (ELEMENTS_PER_PART, 1024)
    return min(limit, max(least, math.prod(map(hint, sizes)) // PARALLEL))


def part_size(sizes: Sequence[IntLike], place: Place, width: int) -> IntLike | None:
    """How many elements along the reduced dimensions one part sums, or None to leave it whole.

    A part is whole trailing dimensions times a divisor of the next, so that parts need no divisions to find. With
    symbolic sizes it divides all of them, and the number of parts follows the size.
    """
    total = math.prod(map(hint, sizes))
    wanted = _wanted(sizes, place)
    best: IntLike | None = None
    suffix: IntLike = 1
    most = total if is_symbolic(sizes) else MAX_PARTS * (4 if width <= 64 else 1)
    for size in reversed(sizes):
        for divisor in divisors(size):
            part = suffix * divisor
            parts = total // hint(part)
            if 2 <= parts <= most and not same(part, 1):
                if best is None or abs(math.log(hint(part) / wanted)) < abs(math.log(hint(best) / wanted)):
                    best = part
        suffix *= size
    return best


def _halves(node: Reduction, part: IntLike) -> tuple[Reduction, Reduction]:
    """(the reduction of parts, the reduction over them)."""
    dims, left = list(node.dims), part
    whole: list[int] = []
    while dims and known_divides(node.source_shape[dims[-1]], left):
        whole.insert(0, dims.pop())
        left //= node.source_shape[whole[0]]
    cut = dims.pop() if not same(left, 1) else None
    shape: list[IntLike] = []
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
    return _two(node, sizes, len(made), len(chunks), _part(node, order, cut, left, _wide(node)))


def _wide(node: Reduction) -> torch.dtype:
    """Parts of a low-precision sum stay in float32: it is rounded once, at the end."""
    return torch.float32 if node.dtype in (torch.bfloat16, torch.float16) else node.dtype


def _two(
    node: Reduction, sizes: tuple[IntLike, ...], made: int, chunks: int, first: Body
) -> tuple[Reduction, Reduction]:
    """The reduction of `first` to the leading `made` dimensions of `sizes`, and that of the first `chunks` of them."""
    wide, name = _wide(node), f"{node.name}_part"
    shape: Any = sizes[:made]
    strides: Any = row_major(shape)
    meta = TensorMeta(shape, wide, strides, node.meta.device)
    partial = Reduction(name, meta, node.inputs, first, node.kind, sizes, tuple(range(made, len(sizes))), wide)

    def body(ops: Ops, index: Index) -> Value:
        return ops.load(name, index)

    over = tuple(range(chunks))
    return partial, replace(node, inputs=(name,), body=body, source_shape=shape, dims=over, dtype=wide)


def _masked_halves(node: Reduction, part: int) -> tuple[Reduction, Reduction]:
    """As `_halves` for a size that no number divides: the last part is short, which a mask tells."""
    sizes = [node.source_shape[d] for d in node.dims]
    kept = [d for d in range(len(node.source_shape)) if d not in node.dims]
    total = math.prod(sizes)
    made = (-(-total // part), *(node.source_shape[d] for d in kept))
    dtype, wide = node.dtype, _wide(node)
    start = neutral(node.kind, dtype)

    def body(ops: Ops, index: Index) -> Value:
        place = index[0] * part + index[-1]
        straight = dict(zip(kept, index[1:-1], strict=True))
        straight |= dict(zip(node.dims, reshape_index([place], [total], sizes), strict=True))
        full = tuple(straight[d] for d in range(len(node.source_shape)))
        inside = [Condition(place, None, total)]
        value = ops.masked(inside, lambda: node.body(ops, full), ops.constant(start, dtype))
        return ops.convert(value, dtype, wide)

    return _two(node, (*made, part), len(made), 1, body)


def neutral(kind: str, dtype: torch.dtype) -> bool | int | float:
    """What does not change a fold of this kind."""
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind == "amax"
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    if dtype is torch.bool:
        return not lowest
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def _part(node: Reduction, order: Sequence[int], cut: int | None, size: IntLike, dtype: torch.dtype) -> Body:
    """The body of `node` for an index whose dimensions are permuted by `order`, with dimension `cut` in two pieces."""
    inverse = sorted(range(len(order)), key=order.__getitem__)

    def body(ops: Ops, index: Index) -> Value:
        straight = tuple(index[d] for d in inverse)
        if cut is not None:
            straight = (*straight[:cut], straight[cut] * size + straight[cut + 1], *straight[cut + 2 :])
        return ops.convert(node.body(ops, straight), node.dtype, dtype)

    return body
