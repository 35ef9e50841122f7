"""Programs whose intermediates have memory of their own, and whose kernels run one by one, compute the same.

Plans do this to large programs only, where it saves memory. Here it is done to all, whatever it saves.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import smelt
from smelt.schedule.buffer_assignment import BufferAssignment
from smelt.schedule.memory import MemoryPlan
from smelt.schedule.order import Unit
from tests.codegen.cpp.test_kernel import check
from tests.codegen.test_symbolic import run_at
from tests.loops.graphs import GraphBuilder
from tests.loops.random_graphs import RandomGraph, SymbolicRandomGraph


@pytest.fixture(autouse=True)
def overwriting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No buffer is in the arena, and each second kernel begins a run. Returns the values written over others."""
    overwriting: list[str] = []

    def dedicate(self: BufferAssignment, together: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        over = {new: old for new, old in memory.in_place.items() if self.overwriting.alike(new, old)}
        self.dedicated = memory.offsets.keys() - over.keys()
        self.cover(over)
        overwriting.extend(over)
        plan = self.plan_arena(together)
        assert not plan.offsets
        return plan

    def breaks(self: BufferAssignment, units: Sequence[Unit], memory: MemoryPlan) -> set[int]:
        return {unit.number for unit in units[1::2] if unit.number in self.fused.groups}

    monkeypatch.setattr(BufferAssignment, "dedicate", dedicate)
    monkeypatch.setattr(BufferAssignment, "breaks", breaks)
    return overwriting


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed: int) -> None:
    check(RandomGraph(100 + seed, big=seed % 5 == 4).build(16), 1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_of_symbolic_sizes(seed: int) -> None:
    made = SymbolicRandomGraph(200 + seed)
    gm = made.build()
    run_at(gm, made.g.known, [(3, 5), (2, 2), (7, 4), (12, 70)], 1000, 2e-3)


def test_values_over_others(overwriting: list[str]) -> None:
    g = GraphBuilder()
    x, w = g.input(64, 48), g.input(48, 48)
    for _ in range(4):
        x = g.mul(g.mm(x, w), 0.01)
        x = g.exp(g.sub(x, g.broadcast_in_dim(g.sum(g.mm(x, w), (1,)), (64, 48), (0,))))
    check(g.build(g.mm(x, w)), 1e-3)
    assert len(overwriting) > 3


def test_values_without_elements() -> None:
    """No kernel runs, but one value would lie over another."""
    g = GraphBuilder()
    x, w = g.input(0, 48), g.input(48, 48)
    check(g.build(g.mm(g.exp(g.mm(g.mul(g.mm(x, w), 0.5), w)), w)))


def test_a_training_step() -> None:
    """Convolutions, norms, pools and products."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 5),
        nn.Softmax(-1),
    )  # fmt: skip
    x = torch.randn(6, 3, 32, 32)

    def gradients(run: nn.Module) -> list[torch.Tensor]:
        model.zero_grad()
        out = run(x)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    want = gradients(model)
    compiled = smelt.compile(model)
    for _ in range(2):
        for got, right in zip(gradients(compiled), want, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)
