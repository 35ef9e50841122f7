"""Schedules change the settings of an optimizer at every step: two more versions are compiled at most."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import smelt

OPTIMIZERS: dict[str, Callable[[Iterable[torch.nn.Parameter]], optim.Optimizer]] = {
    "AdamW": lambda p: optim.AdamW(p, 1e-2),
    "AdamW, fused": lambda p: optim.AdamW(p, 1e-2, fused=True),
    "AdamW, fused, amsgrad": lambda p: optim.AdamW(p, 1e-2, fused=True, amsgrad=True, maximize=True),
    "Adam, fused": lambda p: optim.Adam(p, 1e-2, weight_decay=0.1, fused=True),
    "SGD": lambda p: optim.SGD(p, 1e-2, momentum=0.9),
    "SGD, fused": lambda p: optim.SGD(p, 1e-2, momentum=0.9, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-2),
    "NAdam": lambda p: optim.NAdam(p, 1e-2),
}
SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 14),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=14),
    "linear": lambda o: lr_scheduler.LinearLR(o, total_iters=9),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_under_a_schedule(optimizer: str, schedule: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    inputs = torch.randn(12, 5, 3, dtype=torch.float64)

    def train(model: torch.nn.Module, compile_: Callable[..., Any]) -> list[torch.Tensor]:
        chosen = OPTIMIZERS[optimizer](model.parameters())
        following = SCHEDULES[schedule](chosen)

        def step(x: torch.Tensor) -> torch.Tensor:
            chosen.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            chosen.step()
            return loss.detach()

        run, losses = compile_(step), []
        for x in inputs:
            losses.append(run(x))
            following.step()
        return [*losses, *model.parameters()]

    want = train(copy.deepcopy(model), lambda f: f)
    before = smelt.stats()["recompiles"]
    got = train(model, smelt.compile)
    assert smelt.stats()["recompiles"] - before <= 2
    torch.testing.assert_close(got, want)


class Counting:
    """An object that a function finds in its closure, and that counts calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def test_an_attribute_that_counts_calls() -> None:
    """One more version is compiled, whatever way leads to the object."""
    counting = [Counting(), Counting()]
    before = smelt.stats()["recompiles"]
    run = smelt.compile(lambda x: counting[0](x) + 1)
    for _ in range(6):
        assert torch.equal(run(torch.ones(3)), counting[1](torch.ones(3)) + 1)
    assert smelt.stats()["recompiles"] - before <= 2 and counting[0].calls == 6


def step_of(weight: torch.Tensor, chosen: optim.Optimizer, following: Any) -> Callable[[torch.Tensor], None]:
    """One step of training, with that of the schedule."""

    def step(x: torch.Tensor) -> None:
        (weight * x).sum().backward()
        chosen.step()
        following.step()

    return step


BRANCHING: dict[str, Callable[[optim.Optimizer], Any]] = SCHEDULES | {
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [3, 5, 9], 0.5),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2),
    "in turn": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 6)], [4]
    ),
    "together": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, total_iters=5), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("schedule", BRANCHING.values(), ids=BRANCHING.keys())
def test_a_schedule_inside_of_the_step(schedule: Callable[[optim.Optimizer], Any]) -> None:
    """Its counters are numbers of the graph; where it goes on to branch on them, the graph ends before it."""
    rates = []
    for compile_ in (lambda f: f, smelt.compile):
        weight = torch.ones(3, requires_grad=True)
        chosen = optim.SGD([weight], 0.1, momentum=0.9)
        following = schedule(chosen)

        run, before = compile_(step_of(weight, chosen, following)), smelt.stats()["recompiles"]
        rates.append([])
        for _ in range(12):
            run(torch.ones(3))
            rates[-1].append(chosen.param_groups[0]["lr"])
        rates[-1] += weight.tolist()
        assert smelt.stats()["recompiles"] - before <= 2
    assert rates[1] == pytest.approx(rates[0])
