"""Numbers that each call brings beside tensors of 16 bits: rounded where eager rounds them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt

OPERATORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "divided": lambda x, s: s / x,
    "add": lambda x, s: x + s,
    "sub": lambda x, s: x - s,
    "subtracted": lambda x, s: s - x,
    "of a quotient": lambda x, s: x * (2.0 / s) + 1,
    "in place": lambda x, s: x.mul(s).div_(s),
    "less": lambda x, s: x < s,
}


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("shape", [(), (1,), (17,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_of_the_call_is_rounded_as_in_eager(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], target: str
) -> None:
    function = OPERATORS[name]
    compiled = smelt.compile(function, options={"target": target})
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        number = 3 * torch.rand((), generator=generator).item() + 0.1
        x = (2 * torch.randn(shape, generator=generator)).to(dtype)
        assert torch.equal(compiled(x, number), function(x, number))


@pytest.mark.parametrize("size", [7, 11, 13, 49])
def test_the_share_of_a_size_that_changes_is_not_rounded(size: int) -> None:
    def deviation(x: Tensor) -> Tensor:
        return torch.std(x.to(torch.float16), 0, correction=0) + 1

    compiled = smelt.compile(deviation, dynamic=True)
    for seed in range(4):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        found = x.detach().clone().requires_grad_()
        gradient = torch.tensor(0.37, dtype=torch.float16)
        deviation(x).backward(gradient)
        compiled(found).backward(gradient)
        assert torch.equal(found.grad, x.grad)
