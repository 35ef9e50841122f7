"""The text of kernels grows with the number of operators, and not with the number of ways between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen import cpp


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lines of each kernel that is rendered."""
    found: list[int] = []
    render = cpp.render_kernel

    def counted(*args: Any) -> Any:
        kernel = render(*args)
        found.append(len(kernel.lines))
        return kernel

    monkeypatch.setattr(cpp, "render_kernel", counted)
    return found


def recurrence(y: torch.Tensor) -> torch.Tensor:
    z = y * 1
    for i in range(1, len(y)):
        z[i] += z[i - 1]
    return z


def gradient(y: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(recurrence(y).square().sum(), y)[0]


def neighbours(y: torch.Tensor) -> torch.Tensor:
    z = y * 1
    for i in range(1, len(y) - 1):
        z[i] = (z[i - 1] + z[i] + z[i + 1]) * 0.3
    return z


def rolls(y: torch.Tensor) -> torch.Tensor:
    x = y
    for _ in range(len(y)):
        x = (x + x.roll(1, -1) + x.roll(1, 0)) * 0.3
    return x


def gradient_of_rolls(y: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(rolls(y).square().sum(), y)[0]


@pytest.mark.parametrize("function", [recurrence, gradient, neighbours, rolls, gradient_of_rolls])
def test_writes_and_reads_of_rows_one_after_the_other(function: Callable[..., Any], lines: list[int]) -> None:
    """Eight rows took half a minute in the C++ compiler, of whose 19,000 lines each row doubled the number."""
    most = []
    for rows in (8, 24):
        lines.clear()
        y = torch.rand(rows, 5, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(smelt.compile(function)(y), function(y))
        most.append(sum(lines))
    assert most[0] < 2000
    assert most[1] < 8 * most[0]


# -- many parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_many_parts_are_put_together_by_a_library(dtype: torch.dtype, dim: int, lines: list[int]) -> None:
    """A loop over the result would look for each element's part among all: 1,000 took 27 times as long as in eager."""
    parts = [torch.randint(0, 2, (2, 3 if dim else 1 + i % 3, 2)).to(dtype).movedim(0, dim) for i in range(100)]
    function = lambda *x: torch.cat(x, dim) if dim else torch.cat([y.flatten() for y in x])  # noqa: E731
    torch.testing.assert_close(smelt.compile(function)(*parts), function(*parts))
    assert not lines


def test_many_parts_that_are_computed_and_their_gradients() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = torch.cat([(x * i)[: i % 4] for i in range(100)])
        stacked = torch.stack([x.roll(i) for i in range(100)])
        return found, stacked, torch.autograd.grad(found.square().sum() + stacked.sin().sum(), x)[0]

    x = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(smelt.compile(function)(x), function(x))


def test_many_images_with_channels_last_keep_their_layout() -> None:
    parts = [torch.rand(1, 3, 4, 2).contiguous(memory_format=torch.channels_last) for _ in range(70)]
    function = lambda *x: torch.cat(x)  # noqa: E731
    got, want = smelt.compile(function)(*parts), function(*parts)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("count", [65, 400])
def test_many_outputs_inputs_and_writes(count: int) -> None:
    def function(x: torch.Tensor, *more: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.zeros(count, 3)
        for i in range(count):
            rows[i] = x * i
        return [rows, *(y.sin() * 2 + 1 for y in more), *(x + i for i in range(count))]

    given = (torch.rand(3), *(torch.rand(2 + i % 3) for i in range(count)))
    torch.testing.assert_close(smelt.compile(function)(*given), function(*given))
