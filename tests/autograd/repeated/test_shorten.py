"""A graph with four of its blocks computes what a model of four blocks does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

import smelt
from smelt.autograd.repeated.blocks import find_blocks
from smelt.autograd.repeated.shorten import shorten
from tests.autograd.repeated.oracle import Net


def test_the_first_and_the_last_two_blocks_stay() -> None:
    net, x = Net(11), torch.randn(5, 4)
    results: list[Tensor] = []

    def run(gm: fx.GraphModule, examples: Sequence[Tensor]) -> Callable[..., Any]:
        blocks = find_blocks(gm, examples)
        assert blocks is not None
        assert blocks.count == 11
        short = shorten(gm, examples, blocks)
        assert [short.block[short.position.index(k)] for k in range(len(short.examples))].count(2) == 6
        results.extend(short.module(*short.examples))
        return gm.forward

    smelt.compile(net, backend=run)(x)
    for layer in net.layers[2:-2]:
        layer.forward = lambda x: x  # type: ignore[assignment]
    torch.testing.assert_close(results, [net(x)])
