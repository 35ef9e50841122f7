"""Chooses chains of convolutions that are computed row by row, where that lowers the peak memory of a program.

A convolution computes a row of its result as soon as the next one needs it, into a ring buffer of as many rows as the
next one's kernel is high, so that no tensor between the convolutions exists as a whole; the idea is that of patch-wise
inference (MCUNetV2, arXiv 2110.15352), but no row is computed twice. The rows of the last result may take the place of
the first operand's rows that no later row needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from smelt.tiny.graph import Conv, Int8Graph, sources
from smelt.tiny.plan import calls_in_use
from smelt.tiny.program import PLANE_SLACK, Program, Saved, adapter_names

MAX_STAGES = 8
"""Maximum number of convolutions of a chain."""


@dataclass(frozen=True)
class Chain:
    """Convolutions each of which reads the result of the one before.

    Attributes:
        in_place: whether the rows of the last result overwrite those of the first operand.
    """

    stages: tuple[Conv, ...]
    in_place: bool = False


Build = Callable[[tuple[Chain, ...]], Program]
"""Builds a program in which these chains are computed row by row."""


def choose_chains(graph: Int8Graph, saved: Saved, build: Build, enough: int = 0) -> Program:
    """The program with the smallest peak memory that is found by streaming, at each step, the chain at the peak that
    lowers it most, and of these the shortest; chains that turn out not to lower it are taken out at the end.

    Args:
        enough: bytes of memory below which the peak need not be.
    """
    found: tuple[Chain, ...] = ()
    sequences = _sequences(graph, saved)
    program = build(found)
    peak = _peak(program, enough)
    while sequences and peak[0] > enough:
        tried = [(_peak(build(chains), enough), chains) for chains in _candidates(graph, program, sequences, found)]
        best = min(tried, key=lambda one: (one[0], _stages(one[1])), default=None)
        if best is None or best[0] >= peak:
            break
        peak, found = best
        program = build(found)
    for chain in found:
        fewer = tuple(other for other in found if other is not chain)
        if _peak(build(fewer), enough)[0] <= peak[0]:
            found = fewer
    return build(found)


def _stages(chains: tuple[Chain, ...]) -> int:
    return sum(len(chain.stages) for chain in chains)


def _peak(program: Program, enough: int) -> tuple[int, int]:
    """The largest number of bytes in use during a call, and the number of calls that use so many; what is less than
    `enough` counts as such.
    """
    used = calls_in_use(program)
    return (max(used), used.count(max(used))) if max(used) > enough else (enough, 0)


def _sequences(graph: Int8Graph, saved: Saved) -> list[tuple[Conv, ...]]:
    """The longest sequences of convolutions that can be computed row by row: neither their weights are trained nor does
    the backward need what is between them.
    """
    readers = Counter(name for op in graph.operators for name in sources(op))
    found: dict[str, list[Conv]] = {}
    for op in graph.layers:
        if not isinstance(op, Conv) or {op.weight.name, *adapter_names(op)} & saved.trained:
            continue
        before = found.pop(op.x, None)
        if before is not None and (readers[op.x] > 1 or before[-1].name in saved.masks):
            found[op.x], before = before, None
        found[op.y] = [*(before or ()), op]
    return [tuple(one) for one in found.values() if len(one) > 1]


def _candidates(
    graph: Int8Graph, program: Program, sequences: list[tuple[Conv, ...]], found: tuple[Chain, ...]
) -> Iterator[tuple[Chain, ...]]:
    """The chains found so far with another one, which contains the convolution of the call that uses most memory."""
    used = calls_in_use(program)
    peak = max(used)
    at = program.calls[used.index(peak)].op
    sequence = next((one for one in sequences if at in one), ())
    for first in range(len(sequence)):
        for end in range(first + 2, min(len(sequence), first + MAX_STAGES) + 1):
            stages = sequence[first:end]
            if at not in stages or chain_bytes(graph, stages) >= peak:
                continue
            rest = tuple(chain for chain in found if not set(chain.stages) & set(stages))
            for chain in (Chain(stages), *([Chain(stages, True)] if may_overwrite(graph, stages) else ())):
                if chain not in found:
                    yield (*rest, chain)


def chain_bytes(graph: Int8Graph, stages: tuple[Conv, ...]) -> int:
    """Bytes that a chain takes at least: its scratch memory and the larger one of operand and result."""
    ends = (graph.tensors[stages[0].x].elements, graph.tensors[stages[-1].y].elements)
    return scratch_bytes(graph, stages) + max(ends)


# -- rows ----------------------------------------------------------------------------------------------------------


def ring_rows(graph: Int8Graph, reader: Conv) -> int:
    """The number of rows of its input that a convolution in a chain needs at a time."""
    return min(reader.kernel[0], graph.tensors[reader.x].shape[0])


def ring_offsets(graph: Int8Graph, stages: tuple[Conv, ...]) -> list[int]:
    """The offsets, within the scratch memory of a chain, of the rows between its convolutions, then that of the plane
    of its depthwise convolutions, then the size of the scratch memory; in bytes.
    """
    offsets = [0]
    for _, reader in pairwise(stages):
        _, width, channels = graph.tensors[reader.x].shape
        offsets.append(offsets[-1] + _words(ring_rows(graph, reader) * width * channels))
    planes = [op.kernel[0] * row_width(graph, op) + PLANE_SLACK for op in stages if op.depthwise]
    return [*offsets, offsets[-1] + _words(max(planes, default=0))]


def scratch_bytes(graph: Int8Graph, stages: tuple[Conv, ...]) -> int:
    """Bytes of the scratch memory of a chain."""
    return ring_offsets(graph, stages)[-1]


def row_width(graph: Int8Graph, op: Conv) -> int:
    """Columns of the input of a convolution, with its padding."""
    height, width, _ = graph.tensors[op.x].shape
    return op.padded(height, width)[1]


def _words(size: int) -> int:
    return -(-size // 4) * 4


def may_overwrite(graph: Int8Graph, stages: tuple[Conv, ...]) -> bool:
    """Whether each row of a chain's result fits in the memory of the rows of its operand that no later row needs."""
    x, y = graph.tensors[stages[0].x], graph.tensors[stages[-1].y]
    made = list(_rows_made(graph, stages))
    wide, narrow = x.shape[1] * x.channels, y.shape[1] * y.channels
    fits = (
        rows == made[-1] or (row + 1) * narrow <= max(0, rows * stages[0].stride - stages[0].padding[0]) * wide
        for row, rows in enumerate(made)
    )
    return y.elements <= x.elements and all(fits)


def _rows_made(graph: Int8Graph, stages: tuple[Conv, ...]) -> Iterator[int]:
    """For each row of a chain's result, the number of rows of the first convolution's result that are computed (or
    passed over) by then.
    """
    for row in range(graph.tensors[stages[-1].y].shape[0]):
        end = row + 1
        for op in reversed(stages[1:]):
            end = min((end - 1) * op.stride - op.padding[0] + op.kernel[0], graph.tensors[op.x].shape[0])
        yield end
