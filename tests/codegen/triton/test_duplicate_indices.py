"""Sums at places that meet where neither place nor value varies: each element adds, however the loop sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

pytest.importorskip("triton")

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def zeros(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=x.dtype)


def gathered(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    table = x[:1].expand(4, 1).clone().requires_grad_()
    return torch.autograd.grad((table.gather(0, places[:, None]) * 2).sum(), table)[0]


PROGRAMS: dict[str, Program] = {
    "scatter_add": lambda x, places: zeros(x, 8, 1).scatter_add(0, places[:, None], x),
    "constant places": lambda x, places: zeros(x, 8, 1).scatter_add(0, torch.zeros_like(places)[:, None], x),
    "scatter_reduce": lambda x, places: zeros(x, 8, 1).scatter_reduce(0, places[:, None], x, "sum"),
    "index_add": lambda x, places: zeros(x, 8, 1).index_add(0, places, x),
    "index_put": lambda x, places: zeros(x, 8, 1).index_put((places,), x, accumulate=True),
    "constants": lambda x, places: zeros(x, 8).index_add(0, places, torch.ones(len(places), dtype=x.dtype)),
    "put": lambda x, places: zeros(x, 8).put(places, x[:, 0], accumulate=True),
    "computed": lambda x, places: zeros(x, 8, 1).index_add(0, places + 1, x + x),
}


@pytest.mark.parametrize("size", [1, 8, 1031])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("target", ["auto", "triton"])
def test_sums_of_one_element(target: str, dtype: torch.dtype, size: int) -> None:
    x = torch.full((1, 1), 3).to(dtype).expand(size, 1)
    places = torch.tensor([2]).expand(size)
    for name, f in PROGRAMS.items():
        got = smelt.compile(f, options={"target": target})(x, places)
        torch.testing.assert_close(got, f(x, places), msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("target", ["auto", "triton"])
def test_gradients_at_one_index(target: str) -> None:
    x, places = torch.full((1, 1), 0.5), torch.tensor([2]).expand(6)
    got = smelt.compile(gathered, options={"target": target})(x, places)
    torch.testing.assert_close(got, gathered(x, places))
    weight = torch.ones(4, 1, requires_grad=True)
    smelt.compile(lambda w, i: torch.nn.functional.embedding(i, w), options={"target": target})(
        weight, places
    ).sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[0.0], [0.0], [6.0], [0.0]]))
