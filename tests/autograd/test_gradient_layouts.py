"""Strides of gradients that a compiled function gives to tensors that are no leaves: as eager's derivatives leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "sum": lambda a, b: a + b,
    "square": lambda a, b: b**2 + a,
    "matrices": lambda a, b: a @ b.t(),
    "joined": lambda a, b: torch.cat([a, b]),
    "rows": lambda a, b: F.layer_norm(b, b.shape[1:]) * a,
    "chosen": lambda a, b: torch.where(a > 0.5, b, a),
    "turned": lambda a, b: b.t() * 2 + a.t(),
    "several": lambda a, b: a * b + b.exp(),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x * 1,
    "columns": lambda x: (x.t().contiguous() * 1).t(),
    "gaps": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "every second": lambda x: torch.stack([x, x], 2).flatten(1)[:, ::2],
    "expanded": lambda x: x[:, :1].expand_as(x),
}


def strides(fn: Callable[[Tensor, Tensor], Tensor], first: str, second: str) -> list[Any]:
    torch.manual_seed(0)
    a, b = (LAYOUTS[name](torch.rand(3, 4, requires_grad=True)) for name in (first, second))
    seen: list[Any] = []
    b.register_hook(lambda g: seen.append(g.stride()))
    a.retain_grad()
    out = fn(a, b)
    out.square().sum().backward()
    assert a.grad is not None
    return [*seen, a.grad.stride(), out.stride()]


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_what_was_computed_before(name: str, backend: str) -> None:
    for first, second in (("rows", "columns"), ("rows", "gaps"), ("columns", "expanded"), ("every second", "rows")):
        compiled = smelt.compile(FUNCTIONS[name], backend=backend)
        for _ in range(2):
            assert strides(compiled, first, second) == strides(FUNCTIONS[name], first, second), (first, second)


def hooked(a: Tensor, b: Tensor) -> list[Any]:
    seen: list[Any] = []
    turned = b.t()
    turned.register_hook(lambda g: seen.append(g.stride()))
    product = a * turned
    product.retain_grad()
    turned.retain_grad()
    product.square().sum().backward()
    return [*seen, *(x.grad.stride() for x in (product, turned, a, b) if x.grad is not None)]


def asked(a: Tensor, b: Tensor) -> list[Any]:
    turned = b.t()
    total = a + turned
    return [g.stride() for g in torch.autograd.grad(total.square().sum(), [a, b, turned, total])]


def grids(a: Tensor, b: Tensor) -> list[Any]:
    theta = a.reshape(2, 2, 3) * b.sum()
    grid = F.affine_grid(theta, [2, 3, 4, 5], align_corners=False)
    return [g.stride() for g in torch.autograd.grad(grid.square().sum(), [a, theta, grid])]


@pytest.mark.parametrize("fn", [hooked, asked, grids])
def test_gradients_of_what_is_computed_inside(fn: Callable[[Tensor, Tensor], list[Any]]) -> None:
    found = [
        call(torch.rand(3, 4, requires_grad=True), torch.rand(4, 3, requires_grad=True))
        for call in (fn, smelt.compile(fn))
    ]
    assert found[0] == found[1]


LEAVES: dict[str, Callable[[], Tensor]] = {
    "a number of a matrix": lambda: torch.rand(20, 20)[:1, :1],
    "a column": lambda: torch.rand(4, 20)[:, :1],
    "turned, one row": lambda: torch.rand(5, 1, 7).permute(2, 1, 0),
    "turned": lambda: torch.rand(4, 3).t(),
    "every second": lambda: torch.rand(8)[::2],
    "no rows": lambda: torch.rand(4, 3)[:0],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("leaf", LEAVES)
def test_gradients_of_leaves(leaf: str, dynamic: bool) -> None:
    """As the derivatives leave them where only strides of sizes of 1 differ from the leaf's; else as the leaf."""
    functions = {
        "absolute": torch.abs,
        "sum": lambda x: x.sum(0),
        "running sum": lambda x: x.reshape(-1).cumsum(0),
        "turned back": lambda x: (x.transpose(0, -1) * 2).contiguous(),
        "turned copy": lambda x: torch.transpose_copy(x, 0, -1) if x.numel() > 1 else x.exp(),
        "joined": lambda x: torch.cat([x, x]),
    }
    for name, fn in functions.items():
        found = []
        for call in (fn, smelt.compile(fn, dynamic=dynamic)):
            x = LEAVES[leaf]().detach().requires_grad_()
            out = call(x)
            out.backward(torch.ones_like(out))
            assert x.grad is not None
            found.append(x.grad.stride())
            if name != "sum":  # eager gives one row of it again and again
                found[-1] += layouts_returned(call, x)
        assert found[0] == found[1], name


@pytest.mark.parametrize("leaf", LEAVES)
def test_gradients_that_the_function_accumulates(leaf: str) -> None:
    def fn(x: Tensor) -> Tensor:
        x.transpose(0, -1).contiguous().exp().sum().backward()
        assert x.grad is not None
        return x.grad

    found = [call(LEAVES[leaf]().detach().requires_grad_()).stride() for call in (fn, smelt.compile(fn))]
    assert found[0] == found[1]


def layouts_returned(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, ...]:
    """Nobody accumulates such a gradient: it is as the derivatives leave it, and the values are those."""
    out = call(x)
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert gradient.equal(x.grad)
    return gradient.stride()
