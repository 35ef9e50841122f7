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


@triton_op("smelt_tests_triton::add_to_all", mutates_args={})
def add_to_all(xs: list[torch.Tensor], y: torch.Tensor) -> list[torch.Tensor]:
    return [add_operator(x, y) for x in xs]


@triton_op("smelt_tests_triton::add_into", mutates_args={"out"})
def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
    wrap_triton(add_kernel)[(2,)](x, torch.ones_like(x), out, x.numel(), 2.0, BLOCK=64)


@triton_op("smelt_tests_triton::with_formula", mutates_args={})
def with_formula(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(2,)](x, y, out, x.numel(), 2.0, BLOCK=64)
    return out


with_formula.register_autograd(lambda ctx, grad: (grad, grad * 2))


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


def gradients_without_a_formula(x, y):
    return add_operator(x * 2, y) + 1


def gradients_in_a_list(x, y):
    return add_to_all([y, x * 2], y)[1] + 1


def gradients_with_a_formula(x, y):
    return with_formula(x * 2, y) + 1


def gradients_of_what_is_written(x, y):
    out = y * 2
    add_into(x, out)
    return out


def gradients_elsewhere(x, y):
    with torch.no_grad():
        first = add_operator(x, y)
    return add_operator(x.detach(), y.detach()) * x + first


def history(fn, compiled):
    """What a caller sees of a function whose first argument requires a gradient, and of its backward."""
    x, y, seen = torch.linspace(0, 1, 100).requires_grad_(), torch.linspace(1, 2, 100), []
    try:
        out = compiled(x, y)
        seen += [out.tolist(), out.requires_grad]
        out.sum().backward()
        seen.append(None if x.grad is None else x.grad.tolist())
    except RuntimeError as error:
        seen.append(str(error))
    return seen


def check_gradients(backend: str) -> None:
    functions = (gradients_without_a_formula, gradients_in_a_list, gradients_with_a_formula)
    for fn in (*functions, gradients_of_what_is_written, gradients_elsewhere):
        want, run = history(fn, fn), smelt.compile(fn, backend=backend)
        for _ in range(2):
            assert history(fn, run) == want, (fn, want[1:], history(fn, run)[1:])


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
    if torch.__version__ >= "2.13":
        check_gradients(backend)
    print(backend, "is fine")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(name)
