"""Which graphs are traced with four blocks; then the graph is that of all blocks, node for node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import smelt
from tests.autograd.repeated.oracle import Block, Net, copied_blocks

X = torch.randn(5, 4)


@pytest.mark.parametrize(("count", "copied"), [(1, False), (2, False), (3, False), (7, False), (8, True), (33, True)])
def test_few_blocks_are_traced_as_they_are(count: int, copied: bool) -> None:
    assert copied_blocks(Net(count), X) == [copied]


def test_arguments_and_metadata_of_corresponding_calls_are_equal() -> None:
    net = Net(10)
    assert copied_blocks(net, X.clone().requires_grad_()) == [True]
    assert copied_blocks(net.eval(), X) == [True]
    with torch.no_grad():
        assert copied_blocks(net, X) == [True]
    assert copied_blocks(net.bfloat16(), X.bfloat16()) == [True]
    assert copied_blocks(net, X.bfloat16(), dynamic=True) == [False]


def of_block_5(change: Callable[[Block], Any]) -> Callable[[Net], Any]:
    return lambda net: change(net.layers[5])  # type: ignore[arg-type]


def transposed(block: Block) -> None:
    block.up.weight = nn.Parameter(block.up.weight.detach().t().contiguous().t())


def part_of_larger(block: Block) -> None:
    block.up.bias = nn.Parameter(torch.zeros(32)[16:])


def shared(net: Net) -> None:
    net.layers[5].up.weight = net.layers[3].up.weight  # type: ignore[union-attr]


def all_shared(net: Net) -> None:
    for layer in net.layers:
        layer.up.weight = net.layers[0].up.weight  # type: ignore[union-attr]


def one_twice(net: Net) -> None:
    net.layers[5] = net.layers[3]


def all_one(net: Net) -> None:
    for i in range(len(net.layers)):
        net.layers[i] = net.layers[0]


def one_memory(net: Net) -> None:
    memory = torch.cat([p.detach().flatten() for p in net.parameters()])
    for p in net.parameters():
        p.data, memory = memory[: p.numel()].view_as(p), memory[p.numel() :]


def frozen(net: Net) -> None:
    for layer in net.layers:
        layer.up.weight.requires_grad_(False)  # type: ignore[union-attr]


def hooked(net: Net) -> None:
    for layer in net.layers:
        layer.register_forward_hook(lambda module, inputs, out: out * 2)


def in_evaluation(net: Net) -> None:
    for layer in net.layers:
        layer.norm = nn.BatchNorm1d(8).eval()


@pytest.mark.parametrize(
    ("change", "copied"),
    [
        (of_block_5(lambda block: setattr(block, "scale", 2.0)), False),
        (of_block_5(lambda block: block.up.weight.requires_grad_(False)), False),
        (of_block_5(lambda block: block.double()), False),
        (of_block_5(lambda block: block.register_forward_hook(lambda module, inputs, out: out * 2)), False),
        (of_block_5(lambda block: block.eval()), True),  # a dropout of 0 does nothing in either mode
        (of_block_5(transposed), False),
        (of_block_5(part_of_larger), False),
        (shared, False),
        (all_shared, False),  # their gradients are one sum
        (one_twice, False),
        (all_one, False),
        (one_memory, False),
        (frozen, True),
        (hooked, True),
        (in_evaluation, True),
        (lambda net: setattr(net.layers[5].drop, "p", 0.5), False),
    ],
    ids=range(16),
)
def test_blocks_that_differ_are_all_traced(change: Callable[[Net], Any], copied: bool) -> None:
    net = Net(12)
    change(net)
    try:
        assert copied_blocks(net, X) == [copied]
    except RuntimeError as error:  # the block of doubles fails in eager, too
        assert "dtype" in str(error)


def test_written_buffers_are_all_traced() -> None:
    net = Net(12)
    for layer in net.layers:
        layer.norm = nn.BatchNorm1d(8)
    assert copied_blocks(net, X) == [False]


def loss_and_results(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    for layer in net.layers:
        x = layer(x)
    return x.square().mean(), x


def all_values(net: Net, x: Tensor) -> list[Tensor]:
    return [x := layer(x) for layer in net.layers]


def with_first(net: Net, x: Tensor) -> Tensor:
    first = x
    for layer in net.layers:
        x = layer(x) + first
    return x


def beside_the_last_but_one(net: Net, x: Tensor) -> Tensor:
    before = older = x
    for layer in net.layers:
        x, before, older = layer(x) + older, x, before
    return x


def twice_as_deep(net: Net, x: Tensor) -> Tensor:
    half, kept = len(net.layers) // 2, []
    for layer in net.layers[:half]:
        kept.append(x := layer(x))
    for layer in net.layers[half:]:
        x = layer(x + kept.pop())
    return x


def alternating(net: Net, x: Tensor) -> Tensor:
    for i, layer in enumerate(net.layers):
        x = layer(x) if i % 2 else torch.tanh(layer(x))
    return x


def numbered(net: Net, x: Tensor) -> Tensor:
    for i, layer in enumerate(net.layers):
        x = layer(x) * i
    return x


def in_autocast(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        with torch.autocast("cpu", torch.bfloat16):
            x = layer(x)
    return x.float()


def recomputed(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


def of_a_shared_value(net: Net, x: Tensor) -> Tensor:
    factor = net.first.bias.detach().exp()
    for layer in net.layers:
        x = layer(x * factor)
    return x


def of_a_shared_gradient(net: Net, x: Tensor) -> Tensor:
    factor = net.first.bias.exp()
    for layer in net.layers:
        x = layer(x * factor)
    return x


def without_gradient_inside(net: Net, x: Tensor) -> Tensor:
    for layer in net.layers:
        with torch.no_grad():
            shift = layer.up(x).mean()
        x = layer(x) + shift
    return x


def with_gradient_inside(net: Net, x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    result = y
    for layer in net.layers:
        result = layer(result)
    return result + torch.autograd.grad(result.square().sum(), y, create_graph=True)[0]


@pytest.mark.parametrize(
    ("walk", "count", "copied"),
    [
        (loss_and_results, 10, True),
        (all_values, 10, False),
        (with_first, 10, False),
        (beside_the_last_but_one, 10, False),
        (twice_as_deep, 20, False),
        (alternating, 10, False),
        (alternating, 20, True),
        (numbered, 10, False),
        (in_autocast, 10, True),
        (recomputed, 10, False),
        (of_a_shared_value, 10, True),
        (of_a_shared_gradient, 10, False),
        (without_gradient_inside, 10, True),
        (with_gradient_inside, 10, False),
    ],
)
def test_ways_through_the_blocks(walk: Callable[[Net, Tensor], Any], count: int, copied: bool) -> None:
    assert copied_blocks(Net(count, walk=walk), X) == [copied]


def test_a_break_in_a_block_leaves_graphs_of_one_block() -> None:
    @smelt.disable
    def look(x: Tensor) -> None: ...

    def broken(net: Net, x: Tensor) -> Tensor:
        for layer in net.layers:
            x = layer(x)
            look(x)
        return x

    found = copied_blocks(Net(10, walk=broken), X)
    assert len(found) > 1
    assert not any(found)
