"""Kernels that the tests of building, launching and interpreting share."""

from __future__ import annotations

from smelt.abi.kernel_source import Config, KernelSource

ADD = """import triton
import triton.language as tl


@triton.jit
def half(x):
    return x * 0.5


@triton.jit
def kernel(a, b, out, n, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    inside = i < n
    x = tl.load(a + i, inside) + half(tl.load(b + i, inside).to(tl.float32))
    tl.store(out + i, x, inside)
"""
"""out = a + b / 2"""

ROWS = """import triton
import triton.language as tl


@triton.jit
def kernel(a, out, rows, columns, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r = tl.arange(0, RBLOCK)[None, :]
    values = tl.load(a + x * columns + r, (x < rows) & (r < columns), 0.0)
    tl.store(out + x, tl.sum(values, 1)[:, None], x < rows)
"""
"""out = a.sum(1)"""


def add_kernel(block: int = 256, text: str = ADD, name: str = "fused_add") -> KernelSource:
    """`ADD`, of float32, bfloat16 and float32."""
    return KernelSource(
        text,
        (("a", "*fp32"), ("b", "*bf16"), ("out", "*fp32"), ("n", "i32")),
        ("a", "b", "out"),
        (Config((("XBLOCK", block),)),),
        name,
    )


def rows_kernel(rows: int = 4, columns: int = 64, sizes: str = "i64") -> KernelSource:
    """`ROWS`; the block is as wide as a row."""
    return KernelSource(
        ROWS,
        (("a", "*fp32"), ("out", "*fp32"), ("rows", sizes), ("columns", sizes)),
        ("a", "out"),
        (Config((("XBLOCK", rows), ("RBLOCK", columns))),),
        "row_sums",
    )
