"""Run by test_triton_kernels.py in a process of its own: Triton decides at its import whether it interprets kernels."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

import smelt
from smelt.capture.explain import describe
from smelt.capture.torch.triton_writes import written_parameters


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, by, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y * by, mask=mask)


@triton.jit
def put(pointer, value, mask):
    tl.store(pointer, value, mask=mask)


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, sums_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + tl.load(index_ptr + offsets, mask=mask, other=0), mask=mask)
    pointer = out_ptr
    pointer += offsets
    put(pointer, x, mask)
    for _ in range(2):
        tl.atomic_add(sums_ptr + offsets, x, mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)


def add(x, y, by=2.0):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), by, BLOCK=64)
    return out


@triton_op("smelt_tests_triton::add", mutates_args={})
def add_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(2,)](x, y, out, x.numel(), 2.0, BLOCK=64)
    return out


def between_operations(x, y):
    return add(x * 2, y) + 1


def several_results(x, index):
    out, sums = torch.zeros_like(x), torch.ones_like(x)
    gather_kernel[(2,)](x, index, out, sums, x.numel(), BLOCK=64)
    return out, sums * 2


def into_an_argument(x, out):
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    add_kernel[grid](x, torch.ones_like(x), out, x.numel(), 3.0, 64)
    return out * 2


def autotuned(x, _):
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + 1


def operator(x, y):
    return add_operator(x * 2, y) + 1


def main(backend: str) -> None:
    pointers = [{p for p in written_parameters(k) if p.endswith("_ptr")} for k in (add_kernel, gather_kernel)]
    assert pointers == [{"out_ptr"}, {"out_ptr", "sums_ptr"}], pointers
    functions = [between_operations, several_results, into_an_argument, autotuned]
    if torch.__version__ >= "2.13":  # before, torch itself could not wrap interpreted kernels
        functions.append(operator)
    for fn in functions:
        run = smelt.compile(fn, backend=backend, fullgraph=True)
        for _ in range(2):
            x, y = torch.randn(100), torch.randn(100)
            y = torch.randperm(100) if fn is several_results else y
            copies = x.clone(), y.clone()
            want, got = fn(x, y), run(*copies)
            assert torch.allclose(want if torch.is_tensor(want) else want[1], got if torch.is_tensor(got) else got[1])
            assert torch.equal(x, copies[0]) and torch.equal(y, copies[1]), fn
        assert describe(run._smelt_session).graph_count == 1, fn
    print("fine")


if __name__ == "__main__":
    main(sys.argv[1])
