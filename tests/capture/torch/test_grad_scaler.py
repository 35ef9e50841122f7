"""A step with a GradScaler as one graph: an update is undone where a gradient is not finite, as eager skips it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import smelt
from tests.test_whole_step import Lion

BACKENDS = ("aot_eager", "smelt")
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "single": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "lion": lambda p: Lion(p),
}
SPOILT = (0, 3, 6)
"""Batches that hold an infinity; the first step is skipped, too."""


def _train(compile, make, unscale=True, scheduled=True, keep=lambda scaler: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(x, y):
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    step, found = compile(step), []
    for number in range(8):
        x, y = torch.randn(4, 8), torch.randn(4, 3)
        x[0] = torch.inf if number in SPOILT else x[0]
        found += [step(x, y).detach(), copy.deepcopy([p.detach() for p in model.parameters()]), scaler.get_scale()]
        if scheduled and number:
            scheduler.step()
    return [*found, scaler._get_growth_tracker(), optimizer.state_dict()["state"]]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_skipped_as_in_eager(name, backend):
    make = OPTIMIZERS[name]
    want = _train(lambda f: f, make)
    smelt.reset()
    got = _train(lambda f: smelt.compile(f, backend=backend, fullgraph=name != "lion"), make)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-4, atol=1e-5)
    assert smelt.stats().get("breaks", 0) == (name == "lion")  # its own first step makes its state
    assert "extern_ops" not in smelt.stats() or not any("amp_" in op for op in smelt.stats()["extern_ops"])


def test_the_steps_that_follow_are_one_graph():
    """The first makes the scale, the second sees that no step was counted."""
    smelt.reset()
    _train(lambda f: smelt.compile(f, backend="aot_eager", fullgraph=True), OPTIMIZERS["adamw"], unscale=False)
    assert smelt.stats()["graphs"] <= 3


def test_the_mark_of_a_scheduler():
    """A scheduler warns when no step came before it; a step that was skipped is none."""
    for spoilt in (False, True):
        told = []
        for compile in (lambda f: f, lambda f: smelt.compile(f, backend="aot_eager", fullgraph=True)):
            w = torch.ones(3, requires_grad=True)
            optimizer = torch.optim.SGD([w], lr=0.1)
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            scaler = torch.amp.GradScaler("cpu")

            def step(x, w=w, optimizer=optimizer, scaler=scaler):
                scaler.scale((w * x).sum()).backward()
                scaler.step(optimizer)
                scaler.update()

            compile(step)(torch.full((3,), torch.inf) if spoilt else torch.ones(3))
            told.append((getattr(optimizer, "_opt_called", False), w.detach().clone()))
        torch.testing.assert_close(*told)
        assert told[0][0] is not spoilt


def test_a_step_that_does_more_ends_the_graph():
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

    def run(compile):
        w = torch.ones(3, requires_grad=True)
        optimizer, scaler = Counting([w], lr=0.1), torch.amp.GradScaler("cpu")

        def step(x):
            scaler.scale((w * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        step = compile(step)
        for value in (1.0, torch.inf, 2.0):
            step(torch.full((3,), value))
        return optimizer.steps, w.detach()

    want = run(lambda f: f)
    smelt.reset()
    torch.testing.assert_close(run(lambda f: smelt.compile(f, backend="aot_eager")), want)
    assert want[0] == 2 and any("GradScaler.step()" in reason for reason in smelt.stats()["break_reasons"])
