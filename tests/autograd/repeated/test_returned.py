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


WALKS: list[tuple[Callable[[Net, Tensor], Any], bool, bool]] = [
    (two_of_each, True, True),
    (of_the_block_before, True, True),
    (each, True, False),  # the number of gradients that are added at a border differs at the first border
    (with_a_number, True, False),
    (of_all_but_the_ends, True, False),
    (twice, True, False),  # the graph returns each value once
    (once_more, True, False),
    (parameters, True, False),  # they are no results of the graph
    (views, False, False),
    (in_memory_of_others, False, False),
    (of_every_other, False, False),
    (but_of_one, False, False),
    (in_another_order, False, False),
]


@pytest.mark.parametrize(("walk", "copied", "with_gradients"), WALKS, ids=[walk.__name__ for walk, *_ in WALKS])
def test_values_that_blocks_return(walk: Callable[[Net, Tensor], Any], copied: bool, with_gradients: bool) -> None:
    net = Net(12, walk=walk)
    assert copied_blocks(net, X) == [with_gradients]
    with torch.no_grad():
        assert copied_blocks(net, X) == [copied]
        torch.testing.assert_close(smelt.compile(net)(X), net(X))


def detached(net: Net, x: Tensor) -> list[Tensor]:
    return [(x := layer(x)).detach() * 2 for layer in net.layers] + [x]


def detached_but_one(net: Net, x: Tensor) -> list[Tensor]:
    found = [x := layer(x) for layer in net.layers]
    return [y.detach() * 2 if i == 5 else y * 2 for i, y in enumerate(found)]


def read_late(net: Net, x: Tensor) -> list[Tensor]:
    """The backward reads the returned values."""
    return [x := layer(x).sigmoid() for layer in net.layers]


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / 2


def of_functions(net: Net, x: Tensor) -> list[Tensor]:
    return [x := Halved.apply(layer(x)) for layer in net.layers]  # type: ignore[no-untyped-call]


def square_roots(net: Net, x: Tensor) -> list[Tensor]:
    """An absent gradient is no gradient of zeros, which would become NaN here."""
    found = []
    for layer in net.layers:
        found.append((x * 0).sqrt())
        x = layer(x)
    return [x, *found]


def gradients(call: nn.Module, net: Net, use: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor | None]:
    net.zero_grad()
    x = X.clone().requires_grad_()
    sum((y.sum() for y in use(call(x))), start=torch.zeros(())).backward()
    return [x.grad, *(p.grad for p in net.parameters())]


USES: list[Callable[[list[Tensor]], list[Tensor]]] = [
    lambda found: found,
    lambda found: found[-1:],
    lambda found: found[:1],
    lambda found: [found[3], found[-2]],
]
GRADIENTS: list[tuple[Callable[[Net, Tensor], Any], list[int], bool]] = [
    (read_late, [0, 1, 2, 3], True),
    (of_the_block_before, [1, 3], True),
    (detached, [1], True),
    (detached_but_one, [1], False),
    (of_functions, [1], False),
    (square_roots, [2], True),
]


@pytest.mark.parametrize(("walk", "uses", "copied"), GRADIENTS, ids=[walk.__name__ for walk, *_ in GRADIENTS])
def test_gradients_of_some_results(walk: Callable[[Net, Tensor], Any], uses: list[int], copied: bool) -> None:
    net = Net(12, walk=walk)
    assert copied_blocks(net, X.clone().requires_grad_()) == [copied]
    compiled = smelt.compile(net)
    for use in map(USES.__getitem__, uses):
        got, expected = (gradients(call, net, use) for call in (compiled, net))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_results_may_be_written_before_the_backward() -> None:
    """The programs read what eager reads: an error if eager saved the result, else the value before the write."""

    def written(call: nn.Module, net: Net) -> list[Tensor | None]:
        def use(found: list[Tensor]) -> list[Tensor]:
            result = found[-1].sum()
            found[5].detach().mul_(3)
            return [result]

        return gradients(call, net, use)

    net = Net(12, walk=of_the_block_before)
    torch.testing.assert_close(written(smelt.compile(net), net), written(net, net), rtol=1e-4, atol=1e-4)


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
    assert copied_blocks(lambda: model(ids, use_cache=True)) == [True]
