"""What a schedule needs to know of the machine: how much must run side by side, and how long one worker's part is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Realization:
    """Which values get buffers (realize.py).

    Attributes:
        cheap_additions: cost of an element up to which a value of several users is computed for each of them.
        read_again: what a value that more than two loops use may read, as a multiple of its size, to be computed in
            each of them.
        leaves: most buffers that one value reads.
        additions: most that an element of a value costs.
        repeats: a computed value is stored if a view repeats it so many times.
        levels: most bodies that run inside one another for one value. Each takes up to six frames of Python's limited
            stack.
        evaluations: most elements that one element of a value may take to compute: values read at several places
            multiply.
        waiting: most results of at least `waiting_bytes` that one kernel may wait for only to add them up: they all lie
            in memory until the last one is there. (A weight that twelve layers share has twelve gradients.)
    """

    cheap_additions: int = 4
    read_again: float = 1.3
    leaves: int = 20
    additions: int = 640
    repeats: int = 8
    levels: int = 60
    evaluations: int = 200
    waiting: int = 4
    waiting_bytes: int = 1 << 20


@dataclass(frozen=True)
class Fusion:
    """Which loops become one kernel (fuse.py, merge.py).

    Attributes:
        shared_bytes: buffers that two groups only read bring them together from this size on.
        readers: groups that touch a buffer, up to which each pair of them is tried.
        buffers: most that one kernel touches.
        operations: most in the body of one kernel.
        levels: most bodies that run inside one another to render one value of a kernel; see `Realization`.
        columns: most column accumulators of one kernel.
        accesses: of each buffer, by which two groups are aligned.
    """

    shared_bytes: int = 2048
    readers: int = 12
    buffers: int = 28
    operations: int = 400
    levels: int = 120
    columns: int = 6
    accesses: int = 3


@dataclass(frozen=True)
class Buffers:
    """Where intermediates lie (buffer_assignment.py, memory.py).

    Attributes:
        planned_bytes: of an intermediate whose memory is worth to be planned together with that of a result.
        planned_part: and it is at least this part of the arena: few are, and the arena is planned anew for each.
        apart_bytes: of what may have memory of its own, which costs half a microsecond a call.
        apart_part: and it is at least this part of the arena.
        apart_saves: all memory is less by at least this part of it where intermediates have memory of their own.
        shared_bytes: of an arena shared by programs, from which on its largest buffers may lie outside.
        break_saves: a run of kernels ends early only where more than this part of all memory is saved: each costs a
            call.
        two_ways: buffers up to which two ways to place them are tried.
    """

    planned_bytes: int = 1 << 16
    planned_part: int = 16
    apart_bytes: int = 1 << 12
    apart_part: int = 64
    apart_saves: int = 4096
    shared_bytes: int = 32 << 20
    break_saves: int = 8192
    two_ways: int = 3000


@dataclass(frozen=True)
class Bundling:
    """Which kernels share a launch (horizontal_fusion.py).

    Attributes:
        moved_bytes: most that a kernel takes from others, or leaves to them, for it to move past others: what lies in
            the second-level cache is read more quickly, and for larger kernels that is worth more than a launch.
        tiny_bytes: the same for what lies in the arena, where buffers that live longer leave too many gaps.
        room_bytes: by which the most that is in use may grow, besides a sixty-fourth of it.
        tries: kernels in a row that found no room before the search for others ends.
    """

    moved_bytes: int = 8 << 20
    tiny_bytes: int = 1 << 16
    room_bytes: int = 1 << 20
    tries: int = 4


@dataclass(frozen=True)
class Machine:
    """Numbers by which a program is scheduled. The defaults are those of a CPU. Where no reason stands, none is on
    record.

    Attributes:
        realization, fusion, buffers, bundling: by stage.
        split_elements: those that a reduction folds in all, below which it is left whole.
        parallel: independent rows or parts that a long reduction should have.
        rows_per_part: most rows that one part of a column reduction folds.
        elements_per_part: most elements that one part of a row reduction folds.
        max_parts: most parts of one reduction.
        column_elements: elements that the column accumulators of one kernel may have next to whole rows.
        enough_parallel: parts below which row and column work is not joined in one kernel.
        fixed_columns: whether the width of such accumulators must be a number.
        templates: whether generated kernels compute matrix products.
        column_programs: workers that share a column reduction, each with a block of columns of a part of the rows;
            0: the parts do not depend on the width.
        column_block: columns of such a block.
        mixed_parts: parts of a column reduction that may share its loop with reductions of the rows, whose programs
            take whole rows; used where `column_programs` is.
        column_epilogues: whether what is computed from the results of column reductions may follow in their kernel.
        bundles: whether kernels that need nothing of each other may share a launch.
        takes_over: whether a large result may lie, from the start, where the intermediate does that it is written over,
            and rows may be added to a value in its own memory.
        survives_checks: whether the process goes on after a check that fails. On a GPU it ends the context.
        overwrites_unused: whether a value may lie over one that its kernel reads for another value. On a GPU the store
            would meet loads of the same line that are still under way, which takes three times as long.
        repeats: whether equal layers are scheduled once: where their kernels stay what they are after fusion.
        read_again: what a value may read, as a multiple of its size, to be computed in both of two loops that use it.
    """

    realization: Realization = Realization()
    fusion: Fusion = Fusion()
    buffers: Buffers = Buffers()
    bundling: Bundling = Bundling()
    split_elements: int = 32768
    parallel: int = 32
    rows_per_part: int = 256
    elements_per_part: int = 8192
    max_parts: int = 256
    column_elements: int = 4 * 4096
    enough_parallel: int = 8
    fixed_columns: bool = False
    templates: bool = False
    column_programs: int = 0
    column_block: int = 128
    mixed_parts: int = 512
    column_epilogues: bool = False
    bundles: bool = False
    takes_over: bool = True
    survives_checks: bool = True
    overwrites_unused: bool = True
    repeats: bool = True
    read_again: float = 1.3


CPU = Machine()

GPU = Machine(
    parallel=264,
    max_parts=1024,
    column_elements=8192,
    enough_parallel=100,
    fixed_columns=True,
    templates=True,
    column_programs=264,
    column_epilogues=True,
    bundles=True,
    takes_over=False,
    survives_checks=False,
    overwrites_unused=False,
    repeats=False,
    read_again=1.9,
)
"""A large GPU: two programs for each of 132 multiprocessors; column accumulators stay in registers. Little but bytes
counts: a value is computed again for two loops unless that reads much more."""
