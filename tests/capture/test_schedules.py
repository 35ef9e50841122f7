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
