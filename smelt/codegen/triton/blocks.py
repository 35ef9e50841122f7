"""Block sizes of matrix products on tensor cores: which a kernel has, and which max-autotune tries besides.

A program computes YBLOCK rows and XBLOCK columns of the result, KBLOCK elements of depth at a time. Large blocks read
each factor less often; small ones give every multiprocessor something to do. Operands of `num_stages` steps are in
shared memory at once, of which a multiprocessor of compute capability 9.0 has 227 KiB for a program.
"""

from __future__ import annotations

import torch

from smelt.abi.kernel_source import Config, ceil_power
from smelt.shapes.size import IntLike, hint

SHARED_BYTES = 227 << 10
LEAST = 16
"""Shortest side of a block that tensor cores take."""

GROUP = 8
"""Blocks of rows whose programs follow each other."""

PROGRAMS = 132
"""Multiprocessors of a large GPU."""

MOST = 7
"""Configurations that are timed: each takes Triton one to two seconds to build."""

Blocks = tuple[int, int, int, int, int]
"""YBLOCK, XBLOCK, KBLOCK, warps, stages."""

NARROW: tuple[Blocks, ...] = (
    (128, 128, 64, 4, 4),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (128, 128, 64, 8, 4),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 5),
    (64, 256, 64, 4, 4),
    (64, 64, 128, 4, 4),
    (32, 64, 128, 4, 4),
    (16, 64, 128, 4, 5),
)
"""For half precision."""

ROUNDED: tuple[Blocks, ...] = (
    (128, 128, 32, 4, 4),
    (128, 256, 32, 8, 3),
    (256, 128, 32, 8, 3),
    (128, 128, 32, 8, 4),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 64, 32, 4, 5),
    (64, 64, 64, 4, 3),
    (32, 64, 64, 4, 4),
    (16, 64, 64, 4, 4),
)
"""For float32 whose factors are rounded to TF32."""

EXACT: tuple[Blocks, ...] = (
    (128, 64, 32, 4, 3),
    (128, 128, 32, 8, 3),
    (64, 128, 32, 4, 3),
    (64, 64, 32, 4, 3),
    (32, 64, 32, 4, 3),
    (32, 32, 32, 4, 3),
    (16, 64, 32, 4, 3),
)
"""For float32 as it is, in parts that tensor cores multiply: the parts of both factors lie in registers."""


def product_configs(
    rows: IntLike, columns: IntLike, depth: IntLike, batch: IntLike, dtype: torch.dtype, rounded: bool, autotune: bool
) -> tuple[Config, ...]:
    """The configurations of a product, that of the heuristic first.

    Args:
        rounded: float32 factors are rounded to TF32.
        autotune: others are tried besides.
    """
    table = NARROW if dtype is not torch.float32 else ROUNDED if rounded else EXACT
    sizes = hint(rows), hint(columns), hint(depth)
    fitting = dict.fromkeys(fitted(blocks, sizes) for blocks in table)
    listed = [blocks for blocks in fitting if shared_bytes(blocks, dtype) <= SHARED_BYTES]
    ranked = sorted(listed, key=lambda blocks: _rank(blocks, sizes, hint(batch)), reverse=True)
    return tuple(_config(blocks) for blocks in ranked[: MOST if autotune else 1])


def fitted(blocks: Blocks, sizes: tuple[int, int, int]) -> Blocks:
    """Blocks no larger than what they are for."""
    y, x, k = (
        max(LEAST, min(block, ceil_power(n)))
        for block, n in zip(blocks[:3], sizes, strict=True)
    )  # fmt: skip
    warps = blocks[3] if y * x >= 4096 else min(blocks[3], 4)
    return y, x, k, warps, blocks[4]


def shared_bytes(blocks: Blocks, dtype: torch.dtype) -> int:
    """Shared memory that the operands take."""
    y, x, k, _, stages = blocks
    return (y + x) * k * dtype.itemsize * stages


def _rank(blocks: Blocks, sizes: tuple[int, int, int], batch: int) -> tuple[float, int]:
    """How well the multiprocessors are used, weighed against how often factors are read; larger blocks win ties."""
    y, x = blocks[:2]
    programs = -(-sizes[0] // y) * -(-sizes[1] // x) * batch
    waves = -(-programs // PROGRAMS)
    busy = programs / (waves * PROGRAMS)
    filled = sizes[0] * sizes[1] * batch / (programs * y * x)
    return busy * filled * min(1.0, (y * x / (y + x)) / 64) ** 0.5, y * x


def _config(blocks: Blocks) -> Config:
    y, x, k, warps, stages = blocks
    return Config((("YBLOCK", y), ("XBLOCK", x), ("KBLOCK", k), ("GROUP", GROUP)), warps, stages)
