"""capture/tensors/input_scalars.py: numbers read from tensors that were given are inputs, not breaks or versions."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import smelt
from tests.capture.harness import check, compiled


class Ring(nn.Module):
    """Writes each batch behind the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3, 32))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        at = int(self.place)
        before = self.held.sum(1) + x.sum()
        self.held[:, at : at + len(x)] = x.T
        self.place[0] = (at + len(x)) % 32
        return before


def test_position_in_a_buffer_is_an_input() -> None:
    model, eager = Ring(), Ring()
    run = compiled(model, fullgraph=True)
    for step in range(20):
        x = torch.full((4, 3), float(step))
        assert torch.equal(run(x), eager(x))
        assert torch.equal(model.held, eager.held) and torch.equal(model.place, eager.place)


def test_position_in_a_buffer_through_all_stages() -> None:
    model = Ring()
    eager = copy.deepcopy(model)
    run = smelt.compile(model, fullgraph=True)
    before = smelt.stats()["graphs"]
    for step in range(20):
        x = torch.full((4, 3), float(step))
        torch.testing.assert_close(run(x), eager(x))
        torch.testing.assert_close(model.held, eager.held)
    assert smelt.stats()["graphs"] - before == 2  # at first for 0, then for all


def test_scale_that_changes() -> None:
    def scaled(x: Any, scale: Any) -> Any:
        return x * scale.item() + float(scale)

    run = compiled(scaled, fullgraph=True)
    x = torch.randn(4)
    before = smelt.stats()["graphs"]
    for scale in (0.5, 0.25, 3.0, -1.5, 8.0):
        assert torch.equal(run(x, torch.tensor(scale)), scaled(x, torch.tensor(scale)))
    assert smelt.stats()["graphs"] - before <= 2


def test_number_that_the_program_wrote_before() -> None:
    def counted(x: Any, count: Any) -> Any:
        count += 1
        return x * int(count)

    check(counted, torch.ones(2), torch.tensor(3), breaks=0)
