"""What a schedule needs to know of the machine: how much must run side by side, and how long one worker's part is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Numbers by which reductions are split and fused. The defaults are those of a CPU.

    Attributes:
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
        overwrites_unused: whether a value may lie over one that its kernel reads for another value. On a GPU the store
            would meet loads of the same line that are still under way, which takes three times as long.
        read_again: what a value may read, as a multiple of its size, to be computed in both of two loops that use it.
    """

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
    overwrites_unused: bool = True
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
    overwrites_unused=False,
    read_again=1.9,
)
"""A large GPU: two programs for each of 132 multiprocessors; column accumulators stay in registers. Little but bytes
counts: a value is computed again for two loops unless that reads much more."""
