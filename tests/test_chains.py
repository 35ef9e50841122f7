"""Functions of thousands of operations that need one another: no stage may walk them by recursion, or blow them up."""

import sys
from collections import Counter
from types import FrameType

import pytest
import torch
from torch import nn

import smelt

LENGTH = 5000


def chain(x: torch.Tensor, length: int = LENGTH) -> torch.Tensor:
    for i in range(length):
        x = x * 1.0001 if i % 3 else x + 0.001
    return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_thousands_of_pointwise_operations(backend: str) -> None:
    x = torch.linspace(-1, 1, 64, requires_grad=True)
    want = chain(x)  # its 5000 roundings add up: kernels may fuse a product and a sum
    (slope,) = torch.autograd.grad(want.sum(), x)
    run = smelt.compile(chain, backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(run(x), want, rtol=1e-4, atol=1e-4)
    got = run(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], slope, rtol=1e-4, atol=1e-4)


def calls_to_compile(length: int) -> int:
    """Python calls that it takes to compile a chain of so many operations, of several kinds."""
    smelt.reset()
    made: Counter[str] = Counter()

    def counting(frame: FrameType, event: str, arg: object) -> None:
        made[event] += 1

    run = smelt.compile(lambda x: chain(x.sin(), length).softmax(-1), fullgraph=True)
    x = torch.ones(8, 8, requires_grad=True)
    sys.setprofile(counting)
    try:
        run(x)
    finally:
        sys.setprofile(None)
    return made["call"]


def test_compile_time_grows_with_the_length() -> None:
    calls_to_compile(50)  # fills caches
    short, long = calls_to_compile(400), calls_to_compile(1600)
    assert long < 5 * short


def test_values_read_at_several_indices_are_not_recomputed() -> None:
    def smooth(x: torch.Tensor) -> torch.Tensor:
        for i in range(16):
            x = nn.functional.pad(x, (1, 0))[..., 1 - i % 2 : 33 - i % 2] * 0.5 + x.t() * 0.3
        return x

    x = torch.randn(32, 32, requires_grad=True)
    got, want = smelt.compile(smooth, fullgraph=True)(x), smooth(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])


def test_a_chain_of_views() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(1000):
            x = x.reshape(2, 8).t()
        return x * 2

    x = torch.randn(8, 2)
    torch.testing.assert_close(smelt.compile(turn, fullgraph=True)(x), turn(x))
