"""Chooses block sizes of matrix products on tensor cores: the heuristic's, and others that max-autotune times.

A program computes YBLOCK rows and XBLOCK columns of the result, KBLOCK elements of depth at a time. Large blocks read
each factor less often; small blocks give work to every multiprocessor. Operands of `num_stages` steps are in shared
memory at once, of which a program can use 227 KiB at compute capability 9.0.
"""

from __future__ import annotations

import torch

from smelt.abi.kernel_source import Config, ceil_power
from smelt.schedule.machine import Blocks, Machine
from smelt.shapes.size import IntLike, hint


def product_configs(
    rows: IntLike,
    columns: IntLike,
    depth: IntLike,
    batch: IntLike,
    dtype: torch.dtype,
    rounded: bool,
    autotune: bool,
    machine: Machine,
) -> tuple[Config, ...]:
    """Returns the configurations of a product, that of the heuristic first.

    Args:
        rounded: whether float32 factors are rounded to TF32.
        autotune: whether to add configurations to be timed.
    """
    limits = machine.blocks
    table = limits.half if dtype is not torch.float32 else limits.rounded if rounded else limits.exact
    sizes = hint(rows), hint(columns), hint(depth)
    room = machine.hardware.shared_bytes
    fitting = dict.fromkeys(pipelined(fitted(blocks, sizes, limits.min_side_elements), dtype, room) for blocks in table)
    listed = [blocks for blocks in fitting if shared_bytes(blocks, dtype) <= room]
    ranked = sorted(
        listed, key=lambda blocks: _rank(blocks, sizes, hint(batch), machine.hardware.multiprocessors), reverse=True
    )
    return tuple(_config(blocks, limits.group_rows) for blocks in ranked[: limits.max_timed if autotune else 1])


def fitted(blocks: Blocks, sizes: tuple[int, int, int], least: int) -> Blocks:
    """Returns the blocks reduced to the sizes of the product, with sides of at least `least` elements."""
    y, x, k = (
        max(least, min(block, ceil_power(n)))
        for block, n in zip(blocks[:3], sizes, strict=True)
    )  # fmt: skip
    warps = blocks[3] if y * x >= 4096 else min(blocks[3], 4)
    return y, x, k, warps, blocks[4]


def pipelined(blocks: Blocks, dtype: torch.dtype, room: int) -> Blocks:
    """Returns the blocks with their pipeline stages, reduced to as many as fit into `room` bytes of shared memory."""
    y, x, k, warps, stages = blocks
    step = shared_bytes((y, x, k, warps, 1), dtype)
    return y, x, k, warps, max(1, min(stages, room // step))


def shared_bytes(blocks: Blocks, dtype: torch.dtype) -> int:
    """Returns the bytes of shared memory for the operands."""
    y, x, k, _, stages = blocks
    return (y + x) * k * dtype.itemsize * stages


def _rank(blocks: Blocks, sizes: tuple[int, int, int], batch: int, multiprocessors: int) -> tuple[float, int]:
    """Returns the rank of a configuration: use of multiprocessors against repeated reads of factors; larger blocks win
    ties.
    """
    y, x = blocks[:2]
    programs = -(-sizes[0] // y) * -(-sizes[1] // x) * batch
    waves = -(-programs // multiprocessors)
    busy = programs / (waves * multiprocessors)
    filled = sizes[0] * sizes[1] * batch / (programs * y * x)
    return busy * filled * min(1.0, (y * x / (y + x)) / 64) ** 0.5, y * x


def _config(blocks: Blocks, group: int) -> Config:
    y, x, k, warps, stages = blocks
    return Config((("YBLOCK", y), ("XBLOCK", x), ("KBLOCK", k), ("GROUP", group)), warps, stages)
