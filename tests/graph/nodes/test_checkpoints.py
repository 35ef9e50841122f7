"""Marked regions of a graph as calls of checkpoint: the same values, gradients and writes as in eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.graph.nodes.checkpoints import with_checkpoints
from smelt.graph.nodes.modes import enter_grad_mode, exit_grad_mode


def test_a_graph_without_marks_is_left_alone() -> None:
    module = fx.symbolic_trace(lambda x: x.sin().cos())
    assert with_checkpoints(module) is module


def test_a_region_that_shares_a_mode_with_its_surroundings_is_left_alone() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    token = graph.call_function(enter_grad_mode, (False,))
    token.meta["checkpoint"] = 0
    inner = graph.call_function(torch.sin, (x,))
    inner.meta["checkpoint"] = 0
    graph.call_function(exit_grad_mode, (token,))
    graph.output(inner)
    module = fx.GraphModule({}, graph)
    assert with_checkpoints(module) is module


def test_several_results_and_arguments_that_are_no_tensors() -> None:
    def part(x: Any, scale: Any) -> Any:
        y = x.sin() * scale
        return y, y.cos().exp(), x.shape[0]

    def fn(x: Any, scale: Any) -> Any:
        a, b, rows = checkpoint(part, x, scale, use_reentrant=False)
        c, d, _ = checkpoint(part, b, 2.0, use_reentrant=False)
        return a * rows + c * d, b

    def gradient(run: Any) -> Any:
        x = torch.linspace(0, 1, 6).requires_grad_()
        scale = torch.tensor(3.0, requires_grad=True)
        first, second = run(x, scale)
        return first, torch.autograd.grad((first.sum() + second.sum()), (x, scale))

    found = gradient(smelt.compile(fn, backend="eager", fullgraph=True))
    torch.testing.assert_close(found, gradient(fn), rtol=0, atol=0)


def test_buffers_written_inside_a_checkpoint_match_eager() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    twin = copy.deepcopy(plain)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, x, use_reentrant=False).square().sum()

    run = smelt.compile(step, backend="eager", fullgraph=True)
    for _ in range(3):
        x = torch.randn(8, 4)
        step(plain, x).backward()
        run(twin, x).backward()
    torch.testing.assert_close(dict(twin.named_buffers()), dict(plain.named_buffers()), rtol=0, atol=0)
    for a, b in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0)


def test_an_argument_that_is_written_before_the_backward_is_an_error_as_in_eager() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda a: (a * w).sin().exp(), x, use_reentrant=False).sum()

    for run in (fn, smelt.compile(fn, backend="eager", fullgraph=True)):
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        loss = run(x, w)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
