"""Captured functions whose tensors live on "cuda"; their graphs are looked at, not run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import driver
from smelt.gpu import Recordings
from smelt.graph.nodes.modes import enter_autocast


class Kept(Exception):
    """The graph was seen."""


def graph_of(fn: Any, *inputs: Any) -> torch.fx.GraphModule:
    """The one graph that a call of `fn` is captured as."""
    found = []

    def backend(gm: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        def run(*_: Any) -> Any:
            raise Kept

        found.append(gm)
        return run

    try:
        smelt.compile(fn, backend=backend, fullgraph=True)(*inputs)
    except Kept:
        pass
    (gm,) = found
    return gm


def test_a_whole_step_under_autocast():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4)).cuda()

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).sum()
        loss.backward()
        return loss

    graph = graph_of(step, torch.empty(2, 8, device="cuda")).graph
    targets = [n.target for n in graph.nodes]
    assert targets.count(enter_autocast) == 1 and targets.count(torch.autograd.grad) == 1
    (region,) = (n for n in graph.nodes if n.target is enter_autocast)
    assert region.args == ("cuda", torch.bfloat16, True)


def recordings_of(monkeypatch: pytest.MonkeyPatch, fn: Any, *inputs: Any, **how: Any) -> Recordings:
    """What says which programs of `fn` are recorded, once it is compiled."""
    found: list[Recordings] = []

    def recordings(*args: Any) -> Recordings:
        found.append(Recordings(*args))
        raise Kept

    monkeypatch.setattr(driver, "Recordings", recordings)
    with pytest.raises(Kept):
        smelt.compile(fn, fullgraph=True, **how)(*inputs)
    (made,) = found
    return made


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_with_a_learning_rate_is_recorded(monkeypatch: pytest.MonkeyPatch, optimizer: Any):
    """Its numbers change with each call, its sizes do not: the graph gets them in tensors."""
    model = nn.Linear(8, 4, device="cuda")
    update = optimizer(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        update.step()
        update.zero_grad()
        return loss

    made = recordings_of(monkeypatch, step, torch.empty(2, 8, device="cuda"))
    assert made.joint.reals and made.recorder is not None


def test_sizes_that_change_are_recorded_where_the_mode_asks_for_it(monkeypatch: pytest.MonkeyPatch):
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.empty(6, 8, device="cuda")
    assert recordings_of(monkeypatch, double, x, dynamic=True).recorder is None
    assert recordings_of(monkeypatch, double, x, dynamic=True, mode="reduce-overhead").recorder is not None
    assert recordings_of(monkeypatch, double, x, dynamic=False).recorder is not None


def test_autocast_on_cuda_is_guarded():
    """A function captured outside of a region is captured again inside of it, and in another dtype."""
    graphs = []

    def backend(gm: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        graphs.append([n.meta["val"].dtype for n in gm.graph.nodes if n.op == "call_function"])
        return lambda *inputs: (inputs[0],)

    fn = smelt.compile(lambda x: x @ x, backend=backend)
    x = torch.empty(4, 4, device="cuda")
    fn(x)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype):
            fn(x)
    assert graphs == [[torch.float32], [torch.bfloat16], [torch.float16]]
