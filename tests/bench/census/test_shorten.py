"""smelt/bench/census/shorten.py: repeated blocks go, different ones stay."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from smelt.bench.census.shorten import shorten


class Block(nn.Sequential):
    """Two layers and a setting."""

    def __init__(self, width: int = 4, shift: int = 0, drop: float = 0.0) -> None:
        super().__init__(nn.Linear(4, width), nn.Linear(width, 4))
        self.shift, self.drop = shift, drop


def test_two_of_equal_blocks_stay() -> None:
    model = nn.ModuleList([Block(drop=0.1 * index) for index in range(9)])
    assert shorten(model) == 7
    assert list(model._modules) == ["0", "1"]


def test_one_of_each_kind_stays() -> None:
    model = nn.Sequential(*(Block(shift=index % 3) for index in range(9)), Block(8))
    last = model[-1]
    assert shorten(model) == 6
    assert [block.shift for block in model] == [0, 1, 2, 0]
    assert model[3] is last


def test_names_stay() -> None:
    model = nn.Sequential(OrderedDict((f"block_{index}", Block()) for index in range(4)))
    assert shorten(model) == 2
    assert list(model._modules) == ["block_0", "block_1"]


def test_inner_chains_are_shortened_first_and_layers_stay() -> None:
    model = nn.ModuleList([nn.ModuleList([Block() for _ in range(depth)]) for depth in (3, 5, 7)])
    assert shorten(model) == 1 + 3 + 5 + 1
    assert shorten(nn.Sequential(*(nn.ReLU() for _ in range(9)))) == 0
