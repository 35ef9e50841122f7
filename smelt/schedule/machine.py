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
    """

    parallel: int = 32
    rows_per_part: int = 256
    elements_per_part: int = 8192
    max_parts: int = 256
    column_elements: int = 4 * 4096
    enough_parallel: int = 8
    fixed_columns: bool = False
    templates: bool = False


CPU = Machine()

GPU = Machine(
    parallel=264, rows_per_part=1024, max_parts=512, column_elements=8192, enough_parallel=100, fixed_columns=True,
    templates=True,
)  # fmt: skip
"""A large GPU: two programs for each of 132 multiprocessors; column accumulators stay in registers."""
