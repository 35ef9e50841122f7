"""Which modules `fully_shard` gets, and errors for unknown names and models without layers to split."""

from __future__ import annotations

import pytest
from torch import nn

from smelt.base.errors import OptionError
from smelt.bench.distributed.wrappers import find_wrapper, repeated_blocks


def test_blocks_of_the_outermost_lists() -> None:
    block = lambda: nn.Sequential(nn.ModuleList(nn.ReLU() for _ in range(3)))  # noqa: E731
    mixed = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])
    model = nn.ModuleDict(
        {"layers": nn.ModuleList(block() for _ in range(2)), "mixed": mixed, "one": nn.ModuleList([block()])}
    )
    found = [(container, name) for container, name, _ in repeated_blocks(model)]
    inner = model["one"][0][0]  # type: ignore[index]
    assert found == [(model["layers"], "0"), (model["layers"], "1"), *((inner, str(i)) for i in range(3))]


def test_an_unknown_wrapper() -> None:
    with pytest.raises(OptionError, match="unknown wrapper 'dpp'\n.*did you mean 'ddp'"):
        find_wrapper("dpp")
