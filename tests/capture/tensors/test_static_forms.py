"""Tensors without dimensions as what an operator works on, and as the numbers that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "unique": lambda x, n: torch.unique(x, sorted=False),
    "unique with counts": lambda x, n: x.unique(return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x, n: torch.unique_consecutive(x, return_counts=True),
    "unsqueeze": lambda x, n: torch.unsqueeze(x, n - 2),
    "arange": lambda x, n: torch.arange(x, n),
    "full": lambda x, n: torch.full((n,), x),
    "linspace": lambda x, n: torch.linspace(0.0, 1.0, n),
}


@pytest.mark.parametrize("backend", ["eager", "smelt"])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_and_what_is_worked_on(name: str, backend: str) -> None:
    call = CALLS[name]
    compiled = smelt.compile(call, fullgraph=True, backend=backend)
    for value in (0, 1):
        given = torch.tensor(value), torch.tensor(2)
        got, want = compiled(*given), call(*given)
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
            assert torch.equal(a, b) and a.dtype is b.dtype


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_mask_among_indices_of_a_write_has_to_fit(size: int) -> None:
    """Its true elements alone all lie in the tensor."""

    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[..., 0, mask > 0, None] = 7.0
        return y

    given = torch.ones(2, 2, 3), torch.tensor([1, 1, 0, 0, 0][:size])
    compiled = smelt.compile(fn, backend="eager")
    if size == 3:
        assert torch.equal(compiled(*given), fn(*given))
        return
    with pytest.raises(IndexError, match="mask"):
        compiled(*given)
    with pytest.raises(IndexError, match="mask"):
        fn(*given)


def test_factors_made_of_tensors_stay_in_a_graph_of_static_sizes() -> None:
    """`alpha` is a number that values tell, but no size and no branch depends on it."""

    def step(p: torch.Tensor, g: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        q = p.float()
        q.add_(g, alpha=-(rate / (1 - rate**2)))
        return torch.addcmul(q, g, g, value=rate) - torch.sub(p, g, alpha=rate)

    compiled = smelt.compile(step, fullgraph=True, dynamic=False)
    for rate in (0.5, 0.25, 2.0):
        args = (torch.rand(3), torch.rand(3), torch.tensor(rate))
        torch.testing.assert_close(compiled(*args), step(*args))
