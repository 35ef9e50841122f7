"""Calls that become simpler nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from tests.autograd.joint_examples import graph_of_call

aten = torch.ops.aten

CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[object]]] = {
    "creation": (lambda x: x + torch.zeros_like(x), [aten.full.default, aten.add.Tensor]),
    "empty then filled": (lambda x: x.new_empty(3).fill_(2), [aten.full.default]),
    "copy": (lambda x: torch.empty(3).copy_(x).exp(), [aten.exp.default]),
    "copy and cast": (lambda x: torch.empty(2, 3).copy_(x.int()), [aten._to_copy.default] * 2 + [aten.expand.default]),
    "no cast": (lambda x: x.to(torch.float32).float().sin(), [aten.sin.default]),
    "clone": (lambda x: x.clone().contiguous().detach().cos(), [aten.cos.default]),
    "views of views": (lambda x: x.view(1, 3).view(3, 1).t().view(3).abs(), [aten.abs.default]),
    "empty slice": (lambda x: x[0:3:1].neg(), [aten.neg.default]),
    "permutes": (lambda x: x.expand(2, 3).t().t() * 1, [aten.expand.default, aten.mul.Tensor]),
    "zero": (lambda x: x.mul(2).zero_(), [aten.full.default]),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes(name: str) -> None:
    fn, wanted = CASES[name]
    x = torch.randn(3)
    joint = trace_joint(graph_of_call(fn, 1), [x], Options())
    assert [n.target for n in joint.module.graph.nodes if n.op == "call_function"] == wanted
    assert torch.equal(joint.module(x)[0], fn(x))
