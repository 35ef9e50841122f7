"""smelt/autograd/trace/known_sizes.py: a size that turns out as 1 broadcasts as a 1, under a guard."""

from __future__ import annotations

import torch

import smelt


def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x.masked_fill(x > 1, 1.0), x.unfold(-1, 2, 1))


def test_a_derived_size_of_1_broadcasts() -> None:
    compiled = smelt.compile(joined, dynamic=True)
    for columns in (2, 2, 2):
        x = torch.arange(8.0 * columns).view(8, columns) - columns
        torch.testing.assert_close(compiled(x), joined(x))


def test_other_sizes_get_a_program_of_their_own() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.narrow(0, 0, x.shape[0] - 1) * x[:3]

    compiled = smelt.compile(f, dynamic=True)
    for size in (2, 4, 2, 4):
        x, y = torch.rand(size, 3), torch.rand(7, 3)
        try:
            want = f(x, y)
        except RuntimeError:
            continue
        torch.testing.assert_close(compiled(x, y), want)


def test_slices_of_nothing() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y.diagonal()[1:]], -1) + x[1:1][5:].sum()

    x, y = torch.arange(12.0).view(3, 2, 2), torch.ones(1, 2)
    torch.testing.assert_close(smelt.compile(f)(x, y), f(x, y))


def test_logsumexp_of_whole_numbers() -> None:
    compiled = smelt.compile(lambda x: x.logsumexp(0), dynamic=True)
    for x in (torch.arange(6).view(3, 2), torch.tensor([[True, False], [True, True]])):
        torch.testing.assert_close(compiled(x), x.logsumexp(0))
