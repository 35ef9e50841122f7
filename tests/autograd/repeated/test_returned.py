"""Graphs whose blocks return values, like the keys of a cache: blocks are copied, and results equal those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.bench.regional.models import Decoder
from tests.autograd.repeated.oracle import Block, Net, copied_blocks

X = torch.randn(5, 4)


def each(net: Net, x: Tensor) -> list[Tensor]:
    return [x := layer(x) for layer in net.layers]


def two_of_each(net: Net, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    inner, outer = [], []
    for layer in net.layers:
        inner.insert(0, layer.up(x))  # type: ignore[operator]
        x = layer(x)
        outer.append(x)
    return net.last(x), inner, outer


def with_a_number(net: Net, x: Tensor) -> list[Any]:
    return [(x := layer(x), len(net.layers), None) for layer in net.layers]


def of_all_but_the_ends(net: Net, x: Tensor) -> list[Tensor]:
    return [x := layer(x) for layer in net.layers][1:-1]


def views(net: Net, x: Tensor) -> list[Tensor]:
    return [(x := layer(x)).view(-1, 2).t() for layer in net.layers]


def in_memory_of_others(net: Net, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [((x := layer(x)), x[1:]) for layer in net.layers]


def twice(net: Net, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [((x := layer(x)), x) for layer in net.layers]


def of_every_other(net: Net, x: Tensor) -> list[Tensor]:
    return [x := layer(x) for layer in net.layers][::2]


def but_of_one(net: Net, x: Tensor) -> list[Tensor]:
    found = [x := layer(x) for layer in net.layers]
    return found[:6] + found[7:]


def once_more(net: Net, x: Tensor) -> list[Tensor]:
    found = [x := layer(x) for layer in net.layers]
    return [*found, found[5]]


def in_another_order(net: Net, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    found = [(layer.up(x), x := layer(x)) for layer in net.layers]  # type: ignore[operator]
    return [(b, a) if i == 5 else (a, b) for i, (a, b) in enumerate(found)]


def parameters(net: Net, x: Tensor) -> list[Any]:
    return [((x := layer(x)), layer.up.bias) for layer in net.layers]


def of_the_block_before(net: Net, x: Tensor) -> list[Tensor]:
    found = [x]
    for layer in net.layers:
        found.append(x + 1)
        x = layer(x)
    return [*found, x]


WALKS: list[tuple[Callable[[Net, Tensor], Any], bool]] = [
    (each, True),
    (two_of_each, True),
    (with_a_number, True),
    (of_all_but_the_ends, True),
    (of_the_block_before, True),
    (twice, True),  # the graph returns each value once
    (once_more, True),
    (parameters, True),  # they are no results of the graph
    (views, False),
    (in_memory_of_others, False),
    (of_every_other, False),
    (but_of_one, False),
    (in_another_order, False),
]


@pytest.mark.parametrize(("walk", "copied"), WALKS, ids=[walk.__name__ for walk, _ in WALKS])
def test_values_that_blocks_return(walk: Callable[[Net, Tensor], Any], copied: bool) -> None:
    net = Net(12, walk=walk)
    with torch.no_grad():
        assert copied_blocks(net, X) == [copied]
        torch.testing.assert_close(smelt.compile(net)(X), net(X))


def scaled(block: Block) -> None:
    block.scale = 0.5


def transposed(block: Block) -> None:
    block.up.weight = nn.Parameter(block.up.weight.detach().t().contiguous().t())


def test_blocks_that_differ_are_all_traced() -> None:
    with torch.no_grad():
        for change in (scaled, transposed):
            net = Net(12, walk=each)
            change(net.layers[7])  # type: ignore[arg-type]
            assert copied_blocks(net, X) == [False]
            torch.testing.assert_close(smelt.compile(net)(X), net(X))
        net.layers[5] = net.layers[4]
        assert copied_blocks(net, X) == [False]
        torch.testing.assert_close(smelt.compile(net)(X), net(X))


def test_a_decoder_fills_and_extends_its_cache() -> None:
    model, ids = Decoder(10, 16, 2, 1, 32, 50).build(), torch.randint(0, 50, (2, 6))
    with torch.no_grad():
        assert copied_blocks(lambda: model(ids, use_cache=True)) == [True]
        filled = model(ids, use_cache=True).past_key_values
        assert copied_blocks(lambda: model(ids[:, :1], past_key_values=filled, use_cache=True)) == [True]
