"""Blocks that draw random numbers: each draws from streams of its own, as if all blocks had been traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from tests.autograd.repeated.oracle import Block, Net, copied_blocks

X = torch.randn(5, 4)


def around(net: Net, x: Tensor) -> Tensor:
    x = F.dropout(x, 0.1)
    for layer in net.layers:
        x = layer(x)
    return F.dropout(net.last(F.dropout(x, 0.2)), 0.3)


def only_after(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        x = layer(x)
    return F.dropout(x, 0.3)


def only_before(net: Net, x: Tensor) -> Tensor:
    x = F.dropout(x, 0.3)
    for layer in net.layers:
        x = layer(x)
    return x


def several(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        x = layer(x) + torch.rand_like(x) * torch.bernoulli(x.sigmoid())
    return x


def unused(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        torch.rand(3)
        x = layer(x)
        F.dropout(x, 0.5)
    return x


def from_the_generator(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        x = layer(x) + torch.randperm(8)
    return x


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return F.dropout(gradients[0], 0.5)


def in_backward(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        x = DrawsInBackward.apply(layer(x))  # type: ignore[no-untyped-call]
    return x


@pytest.mark.parametrize(
    ("walk", "p", "copied"),
    [
        (None, 0.5, True),
        (around, 0.5, True),
        (around, 0.0, False),  # how many operators of the blocks draw is not seen
        (only_after, 0.0, False),
        (only_before, 0.0, True),
        (several, 0.1, True),
        (several, 0.0, True),
        (unused, 0.5, True),
        (from_the_generator, 0.0, False),
        (in_backward, 0.0, False),
        (in_backward, 0.5, False),
    ],
)
def test_blocks_that_draw(walk: Callable[[Net, Tensor], Any] | None, p: float, copied: bool) -> None:
    net = Net(12, p=p, walk=walk)
    assert copied_blocks(net, X) == [copied]
    with torch.no_grad():
        assert copied_blocks(net, X) == [copied or walk is in_backward]


def rate(block: Block) -> None:
    block.drop.p = 0.25


def evaluation(block: Block) -> None:
    block.drop.eval()


@pytest.mark.parametrize("change", [rate, evaluation])
def test_a_block_that_draws_otherwise_is_traced(change: Callable[[Block], None]) -> None:
    net = Net(12, p=0.5)
    change(net.layers[6])  # type: ignore[arg-type]
    assert copied_blocks(net, X) == [False]


def test_attention_with_dropout() -> None:
    def attend(net: Net, x: Tensor) -> Tensor:
        for layer in net.layers:
            q = layer(x)[None, None]
            x = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)[0, 0]
        return x

    assert copied_blocks(Net(10, p=0.1, walk=attend), X) == [True]


class Masked(nn.Module):
    """Adds the masks of all its blocks to what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(10))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        masks = []
        for layer in self.layers:
            mask = F.dropout(torch.ones_like(x), 0.5)
            x = layer(x * mask).sigmoid()
            masks.append(mask)
        return x, masks


@pytest.mark.parametrize("grad", [True, False])
def test_masks_differ_by_block_and_call_and_gradients_use_them(grad: bool) -> None:
    """The gradient is that of eager with the same masks."""
    net, x = Masked(), torch.rand(6, 8, requires_grad=grad)
    compiled = smelt.compile(net)
    with torch.set_grad_enabled(grad):
        found = [compiled(x) for _ in range(2)]
        masks = [mask for _, each in found for mask in each]
        assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])
        for result, each in found:
            y = x
            for layer, mask in zip(net.layers, each, strict=True):
                y = layer(y * mask).sigmoid()
            torch.testing.assert_close(result, y)
            if grad:
                torch.testing.assert_close(
                    torch.autograd.grad(result.sum(), [x, *net.parameters()]),
                    torch.autograd.grad(y.sum(), [x, *net.parameters()]),
                )
