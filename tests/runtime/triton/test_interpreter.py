"""Segments on CPU tensors: the interpreter runs on the table's pointers themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import BuildError, CompileError
from smelt.runtime.launch import Table
from smelt.runtime.triton.kernels import Kernels
from tests.runtime.triton_sources import add_kernel, rows_kernel

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton interprets or compiles, by process")


def bound(*tensors: torch.Tensor) -> Table:
    table = Table(len(tensors))
    for slot, tensor in enumerate(tensors):
        table.bind(slot, tensor)
    return table


def test_kernels_run_in_order_on_the_arena() -> None:
    arena, a, b = torch.zeros(8192, dtype=torch.uint8), torch.randn(1000), torch.randn(1000).bfloat16()
    sums = torch.empty(10)
    segment = Kernels([add_kernel(), rows_kernel(4, 128)], "cpu").segment(
        [
            (0, ((1000, "XBLOCK"),), ((1, 0), (2, 0), (0, 4096), 1000)),
            (0, ((1000, "XBLOCK"),), ((0, 4096), (2, 0), (0, 4096), 1000)),  # in place
            (1, ((10, "XBLOCK"),), ((0, 4096), (3, 0), 10, 100)),
        ]
    )
    segment(bound(arena, a, b, sums))
    expected = a + b.float()
    torch.testing.assert_close(arena[4096:8096].view(torch.float32), expected)
    torch.testing.assert_close(sums, expected.view(10, 100).sum(1))
    assert not arena[:4096].any() and not arena[8096:].any()


def test_a_table_may_change_between_calls() -> None:
    segment = Kernels([add_kernel(16)], "cpu").segment([(0, ((20, "XBLOCK"),), ((0, 0), (1, 0), (2, 0), 20))])
    for _ in range(2):
        a, b, out = torch.randn(20), torch.randn(20).bfloat16(), torch.empty(20)
        segment(bound(a, b, out))
        torch.testing.assert_close(out, a + b.float() / 2)


@pytest.mark.parametrize("dtype,kind", [
    (torch.float32, "*fp32"), (torch.float16, "*fp16"), (torch.bfloat16, "*bf16"), (torch.float64, "*fp64"),
    (torch.int64, "*i64"), (torch.int32, "*i32"), (torch.int16, "*i16"), (torch.int8, "*i8"), (torch.uint8, "*u8"),
    (torch.bool, "*i1"),
])  # fmt: skip
def test_types(dtype: torch.dtype, kind: str) -> None:
    text = """import triton
import triton.language as tl


@triton.jit
def kernel(a, out, n, B: tl.constexpr):
    i = tl.program_id(1) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(a + i, i < n), i < n)
"""
    source = KernelSource(text, (("a", kind), ("out", kind), ("n", "i32")), (), (Config((("B", 8),)),))
    a = torch.randn(20).mul(3).to(dtype)
    out = torch.zeros(24, dtype=dtype)
    Kernels([source], "cpu").segment([(0, ((1, None), (20, "B")), ((0, 0), (1, 2 * dtype.itemsize), 20))])(
        bound(a, out)
    )
    assert torch.equal(out[2:22], a) and not out[:2].any() and not out[22:].any()


def test_an_i64_is_one_whatever_its_value() -> None:
    text = """import triton
import triton.language as tl


@triton.jit
def kernel(out, n, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), (n * 4096 + tl.arange(0, B)) // n)
"""
    for kind, expected in (("i64", 4096), ("i32", 0)):
        source = KernelSource(text, (("out", "*i64"), ("n", kind)), (), (Config((("B", 2),)),))
        out = torch.zeros(2, dtype=torch.int64)
        Kernels([source], "cpu").segment([(0, ((1, None),), ((0, 0), 1 << 20))])(bound(out))
        assert out.tolist() == [expected] * 2


def test_nothing_runs_for_no_elements() -> None:
    Kernels([add_kernel()], "cpu").segment([(0, ((0, "XBLOCK"),), ((0, 0), (0, 0), (0, 0), 0))])(Table(1))


def test_launches_that_no_gpu_can_run() -> None:
    kernels = Kernels([add_kernel()], "cpu")
    pointers = ((0, 0), (0, 0), (0, 0))
    with pytest.raises(CompileError, match="'fused_add' takes 4 arguments, a launch gives 3"):
        kernels.segment([(0, ((1, None),), pointers)])
    with pytest.raises(CompileError, match="parameter n of type i32"):
        kernels.segment([(0, ((1, None),), (*pointers, (0, 0)))])
    with pytest.raises(CompileError, match="parameter n of 32 bits"):
        kernels.segment([(0, ((1, None),), (*pointers, 1 << 31))])
    with pytest.raises(CompileError, match="70000 programs along dimension 1"):
        kernels.segment([(0, ((1, None), (70000, None)), (*pointers, 5))])


def test_an_error_names_the_kernel() -> None:
    bad = add_kernel(text=add_kernel().source.replace("tl.load(a + i", "tl.load(missing + i"))
    segment = Kernels([bad], "cpu").segment([(0, ((1, None),), ((0, 0), (0, 0), (0, 0), 0))])
    with pytest.raises(BuildError, match="'fused_add' failed in Triton's interpreter.*missing"):
        segment(Table(1))
    with pytest.raises(BuildError, match="refused kernel 'fused_add'"):
        Kernels([add_kernel(text="def kernel(:")], "cpu").segment([(0, ((1, None),), ((0, 0), (0, 0), (0, 0), 0))])


def test_without_the_interpreter() -> None:
    text = """
import torch
from smelt.runtime.triton.kernels import Kernels
from tests.runtime.triton_sources import add_kernel
Kernels([add_kernel()], "cpu").segment([(0, ((1, None),), ((0, 0), (0, 0), (0, 0), 0))])
"""
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=_environment("0"))
    assert "BuildError" in ran.stderr and "set TRITON_INTERPRET=1" in ran.stderr


def _environment(interpret: str) -> dict[str, str]:
    import os

    path = os.pathsep.join(entry for entry in (os.getcwd(), *sys.path) if entry)
    return {**os.environ, "TRITON_INTERPRET": interpret, "PYTHONPATH": path}


def test_casts_to_bfloat16_round_as_on_a_gpu() -> None:
    text = """import triton
import triton.language as tl


@triton.jit
def kernel(a, stored, cast, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(a + i, i < n)
    tl.store(stored + i, x, i < n)
    tl.store(cast + i, x.to(tl.bfloat16).to(tl.float32), i < n)
"""
    kinds = (("a", "*fp32"), ("stored", "*bf16"), ("cast", "*fp32"), ("n", "i32"))
    source = KernelSource(text, kinds, (), (Config((("B", 64),)),))
    half_ways = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20])
    odd = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.4e38, -3.4e38, 1e-39, -1e-41])
    a = torch.cat([half_ways, odd, torch.randn(500), torch.randn(500) * 1e-38])
    stored, cast = torch.empty(len(a), dtype=torch.bfloat16), torch.empty(len(a))
    given = ((0, 0), (1, 0), (2, 0), len(a))
    Kernels([source], "cpu").segment([(0, ((len(a), "B"),), given)])(bound(a, stored, cast))
    for found in (stored.float(), cast):
        torch.testing.assert_close(found, a.bfloat16().float(), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit() & ~a.isnan(), a.signbit() & ~a.isnan())
