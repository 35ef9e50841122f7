"""Mode nodes change the thread's state and change it back, also inside an fx graph."""

from __future__ import annotations

import torch
from torch import fx, nn

from smelt.graph.nodes import modes


def test_grad_mode() -> None:
    token = modes.enter_grad_mode(False)
    assert token is True and not torch.is_grad_enabled()
    modes.exit_grad_mode(token)
    assert torch.is_grad_enabled()


def test_autocast() -> None:
    region = modes.enter_autocast("cpu", torch.bfloat16)
    try:
        assert (torch.zeros(2, 2) @ torch.zeros(2, 2)).dtype is torch.bfloat16
    finally:
        modes.exit_autocast(region)
    assert not torch.is_autocast_enabled("cpu")


def test_dead_code_removal_keeps_them() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    token = graph.call_function(modes.enter_grad_mode, (False,))
    y = graph.call_function(torch.exp, (x,))
    graph.call_function(modes.exit_grad_mode, (token,))
    graph.output(y)
    graph.eliminate_dead_code()
    assert [n.target for n in graph.nodes if n.target in modes.MODE_CHANGES] == [
        modes.enter_grad_mode,
        modes.exit_grad_mode,
    ]
    assert not fx.GraphModule(nn.Module(), graph)(torch.ones(2, requires_grad=True)).requires_grad
