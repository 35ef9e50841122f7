"""Splits a long reduction with few results into a partial reduction that runs in parallel and a final one.

A reduction over n elements becomes a partial reduction of each chunk and a small final one over the chunks' results.
The chunk size depends on shapes only, never on the number of threads, so results do not either. It also bounds how many
additions follow one another, which keeps rounding errors at the level of pairwise summation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.facts import FOLDS
from smelt.loops.ir import Body, Index, LoopProgram, Node, Ops, Reduction, Value
from smelt.schedule.dependencies import Names, row_major, trace
from smelt.schedule.group import NestLevel, Role, fresh_index, reduction_roles
from smelt.schedule.machine import CPU, Machine
from smelt.schedule.realize import Realized
from smelt.shapes.expr import reshape_index
from smelt.shapes.size import IntLike, content, hint, is_symbolic, same

_UNEVEN = 8
"""Maximum ratio of the size of equal chunks to the wanted size; if it would be larger, the last chunk is shorter
instead.
"""

PARTIAL_SUFFIX = "_part"
"""Suffix of the name of a partial reduction."""


def split_reductions(program: LoopProgram, real: Realized, names: Names, machine: Machine = CPU) -> LoopProgram:
    """Returns the program with long reductions split; new values get buffers in `real`."""
    long = {
        name: _Long(node, program, real, names)
        for name, node in program.nodes.items()
        if isinstance(node, Reduction) and not FOLDS[node.kind].finds and _work(node) >= machine.split_elements
    }
    if not long:
        return program
    mixed = _mixed(list(long.values()))
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if name in long:
            chunk, rest = long[name].split(machine, long[name].extent() in mixed)
            if chunk is not None:
                nodes[chunk.name] = chunk
                real.stored.add(chunk.name)
                real.strides[chunk.name] = row_major(chunk.meta.shape)
                node = rest
        nodes[name] = node
    return replace(program, nodes=nodes)


def _work(node: Reduction) -> int:
    return math.prod(map(hint, node.source_shape))


def _mixed(long: Sequence[_Long]) -> set[tuple[int, int]]:
    """Returns the extents of column reductions that may share their loop with row reductions that read the same
    buffers.

    Column reductions of the same extent are all split alike, since any of them may join that loop.
    """
    rows = {r.name for each in long if each.nest_level is NestLevel.ROW for r in each.reads}
    columns = (each for each in long if each.nest_level is NestLevel.COLUMN)
    return {each.extent() for each in columns if any(r.name in rows for r in each.reads)}


class _Long:
    """A reduction that may be split: its reads, and the roles of its dimensions (rows, columns or kept)."""

    def __init__(self, node: Reduction, program: LoopProgram, real: Realized, names: Names) -> None:
        self.node = node
        index, order = fresh_index(node.source_shape, names)
        self.reads = trace(program, real.stored - {node.name}, node.body, index).accesses
        sized = iter(order)
        by_dim = [None if same(n, 1) else next(sized) for n in node.source_shape]
        self.reduced = [v for d, v in enumerate(by_dim) if v is not None and d in node.dims]
        self.kept = [v for d, v in enumerate(by_dim) if v is not None and d not in node.dims]
        self.roles, self.nest_level = reduction_roles(node, self.reads, self.reduced, self.kept, program, real)

    def extent(self) -> tuple[int, int]:
        """Returns (number of rows that are folded, number of columns), by the example's sizes."""
        return math.prod(hint(v.size) for v in self.reduced), math.prod(hint(v.size) for v in self.kept)

    def split(self, machine: Machine, mixed: bool) -> tuple[Reduction | None, Reduction]:
        """Returns (partial reduction, final reduction), or (None, the reduction itself) if it is not split.

        Args:
            mixed: whether it may share its loop with row reductions.
        """
        node = self.node
        outer = math.prod(hint(v.size) for v in self.kept if self.roles[v] is Role.KEPT)
        if outer >= machine.parallel:
            return None, node
        sizes = [node.source_shape[d] for d in node.dims]
        total = math.prod(map(hint, sizes))
        width = math.prod(hint(v.size) for v in self.kept) // max(outer, 1)
        wanted = _wanted(total, self.nest_level, machine, width, outer, mixed)
        if is_symbolic(sizes):
            # larger chunks than for fixed sizes: later calls may have many more chunks than the example
            return _split_with_short_chunk(node, sizes, max(32, wanted))
        by_width = self.nest_level is NestLevel.COLUMN and machine.column_programs > 0
        if by_width and mixed:  # all reductions that may share a kernel have the same chunks
            wanted = chunk_rows(total, wanted)
        most = machine.max_chunks * (4 if width <= 64 else 1)
        chunk = chunk_size([*map(int, sizes)], wanted, most)
        fits = chunk is not None and (chunk == wanted if mixed else wanted / 2 <= chunk <= wanted * 2)
        if by_width and not fits:
            return _split_with_short_chunk(node, sizes, wanted)
        return _split_near(node, sizes, chunk, max(wanted, total // most))


def _wanted(total: int, nest_level: NestLevel, machine: Machine, width: int, outer: int, mixed: bool) -> int:
    """Returns the wanted number of elements of a chunk; `width`: columns of a row, `outer`: iterations that are
    independent without chunks.
    """
    column = nest_level is NestLevel.COLUMN
    limit, least = (machine.max_chunk_rows, 16) if column else (machine.max_chunk_elements, 1024)
    chunks = machine.parallel
    if column and machine.column_programs:
        blocks = -(-width // machine.column_block)
        chunks = max(1, (machine.mixed_chunks if mixed else machine.column_programs // blocks) // outer)
    return min(limit, max(least, total // chunks))


def chunk_size(sizes: Sequence[int], wanted: int, most: int) -> int | None:
    """Returns the number of elements along the reduced dimensions that one chunk folds, or None if the reduction is not
    split.

    A chunk consists of whole trailing dimensions times a divisor of the next dimension, so that indices of chunks need
    no division.

    Args:
        wanted: wanted number of elements of a chunk.
        most: maximum number of chunks.
    """
    total = math.prod(sizes)
    best: int | None = None
    suffix = 1
    for size in reversed(sizes):
        for divisor in _divisors(size):
            chunk = suffix * divisor
            chunks = total // chunk
            if 2 <= chunks <= most and chunk > 1:
                if best is None or abs(math.log(chunk / wanted)) < abs(math.log(best / wanted)):
                    best = chunk
        suffix *= size
    return best


def _divisors(size: int) -> list[int]:
    """Returns the divisors of a number in increasing order."""
    low = [n for n in range(1, math.isqrt(size) + 1) if size % n == 0]
    return [*low, *(size // n for n in reversed(low) if n * n != size)]


def _split_evenly(node: Reduction, chunk: int) -> tuple[Reduction, Reduction]:
    """Returns (partial reduction, final reduction) with equal chunks of `chunk` elements."""
    dims, left = list(node.dims), chunk
    reduced = {d: int(node.source_shape[d]) for d in dims}
    inner: list[int] = []
    while dims and left % reduced[dims[-1]] == 0 and left >= reduced[dims[-1]]:
        inner.insert(0, dims.pop())
        left //= reduced[inner[0]]
    cut = dims.pop() if left > 1 else None
    shape: list[IntLike] = []
    folded: list[int] = []
    chunks: list[int] = []
    for d, size in enumerate(node.source_shape):
        if d == cut:
            chunks.append(len(shape))
            folded.append(len(shape) + 1)
            shape += [size // left, left]
            continue
        if d in inner:
            folded.append(len(shape))
        elif d in node.dims:
            chunks.append(len(shape))
        shape.append(size)
    # chunk dimensions first, so that the kept ones stay contiguous in the buffer of the partial results
    kept = [d for d in range(len(shape)) if d not in folded and d not in chunks]
    order = [*chunks, *kept, *folded]
    sizes = tuple(shape[d] for d in order)
    made = sizes[: len(chunks) + len(kept)]
    return _partial_and_final(node, sizes, len(made), len(chunks), _permuted_body(node, order, cut, left, _wide(node)))


def _split_near(
    node: Reduction, sizes: list[IntLike], chunk: int | None, wanted: int
) -> tuple[Reduction | None, Reduction]:
    """Split into equal chunks if some are near the wanted size (a prime total has none), else into chunks of which the
    last is shorter.
    """
    if chunk is None or chunk > _UNEVEN * wanted:
        return _split_with_short_chunk(node, sizes, wanted)
    return _split_evenly(node, chunk)


def _wide(node: Reduction) -> torch.dtype:
    """Returns the type of partial results: float32 for a low-precision sum, which is then rounded only once, at the
    end.
    """
    return torch.float32 if node.dtype in (torch.bfloat16, torch.float16) else node.dtype


def _partial_and_final(
    node: Reduction,
    sizes: tuple[IntLike, ...],
    made: int,
    chunks: int,
    first: Body,
    ragged: tuple[int, int, IntLike] | None = None,
) -> tuple[Reduction, Reduction]:
    """Make (partial reduction, final reduction) from their dimensions.

    Args:
        sizes: the sizes of the dimensions of `first`, the body of the partial reduction.
        made: the number of leading dimensions that the result of the partial reduction has; it folds the others.
        chunks: the number of leading dimensions of that result that the final reduction folds.
        ragged: (dimension of chunks, dimension within a chunk, total) where the last chunk is short.
    """
    wide, name = _wide(node), node.name + PARTIAL_SUFFIX
    shape: Any = sizes[:made]
    strides: Any = row_major(shape)
    meta = TensorMeta(shape, wide, strides, node.meta.device)
    partial = Reduction(name, meta, node.inputs, first, node.kind, sizes, tuple(range(made, len(sizes))), wide, ragged)

    def body(ops: Ops, index: Index) -> Value:
        return ops.load(name, index)

    over = tuple(range(chunks))
    return partial, replace(node, inputs=(name,), body=body, source_shape=shape, dims=over, dtype=wide)


def _split_with_short_chunk(node: Reduction, sizes: list[IntLike], wanted: int) -> tuple[Reduction | None, Reduction]:
    """Split like `_split_evenly`, but into chunks of a fixed size of which the last may be short, for totals without
    suitable equal chunks.

    Trailing dimensions that fit into a chunk stay whole; the leading ones become one loop, which is split.
    """
    dims = list(node.dims)
    inner: list[int] = []
    suffix = 1
    while len(dims) > 1 and suffix * hint(node.source_shape[dims[-1]]) <= wanted:
        inner.insert(0, dims.pop())
        suffix *= hint(node.source_shape[inner[0]])
    old = [node.source_shape[d] for d in dims]
    total = math.prod(old)
    chunk = chunk_rows(total, max(wanted // suffix, 1))
    if hint(total) < 2 * chunk:
        return None, node
    kept = [d for d in range(len(node.source_shape)) if d not in node.dims]
    count = (total + chunk - 1) // chunk
    shape = (count, *(node.source_shape[d] for d in kept), chunk, *(node.source_shape[d] for d in inner))
    made = 1 + len(kept)
    dtype, wide = node.dtype, _wide(node)

    def body(ops: Ops, index: Index) -> Value:
        row = index[0] * chunk + index[made]
        straight = dict(zip(kept, index[1:made], strict=True)) | dict(zip(inner, index[made + 1 :], strict=True))
        straight |= dict(zip(dims, reshape_index([row], [total], old), strict=True))
        return ops.convert(node.body(ops, tuple(straight[d] for d in range(len(straight)))), dtype, wide)

    exact = chunk == 1 or (same(count * chunk, total) and len(dims) == 1)
    return _partial_and_final(node, shape, made, 1, body, None if exact else (0, made, total))


def chunk_rows(total: IntLike, wanted: int) -> int:
    """Returns a size of chunks near `wanted`: a divisor of the total for all values of symbols, else a power of two."""
    power = 1 << (wanted.bit_length() - 1)
    unit = content(total)
    return next((n for n in range(wanted, power // 2, -1) if unit % n == 0), power)


def _permuted_body(node: Reduction, order: Sequence[int], cut: int | None, size: int, dtype: torch.dtype) -> Body:
    """Returns the body of `node` for an index of dimensions permuted by `order`, in which dimension `cut` is two
    dimensions.
    """
    inverse = sorted(range(len(order)), key=order.__getitem__)

    def body(ops: Ops, index: Index) -> Value:
        straight = tuple(index[d] for d in inverse)
        if cut is not None:
            straight = (*straight[:cut], straight[cut] * size + straight[cut + 1], *straight[cut + 2 :])
        return ops.convert(node.body(ops, straight), node.dtype, dtype)

    return body
