"""Captured functions whose tensors live on "cuda"; their graphs are looked at, not run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import smelt
from smelt.graph.modes import enter_autocast


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
