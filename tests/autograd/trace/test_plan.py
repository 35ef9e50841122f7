"""The plan of a call as data."""

from __future__ import annotations

import torch

from smelt.autograd.trace.joint import trace_joint
from smelt.autograd.trace.plan import Constant, Fresh, Mutation, Repeated, SameInput, View
from smelt.base.options import Options
from tests.autograd.compare import nonleaf
from tests.autograd.joint_examples import graph_of_call


def test_every_kind_of_output() -> None:
    def fn(x: torch.Tensor, buffer: torch.Tensor) -> tuple[object, ...]:
        buffer.add_(1)
        y = x * 2
        return y, y, x, y[0], None, buffer[0], x.sum()

    x = torch.randn(2, 3, requires_grad=True)
    joint = trace_joint(graph_of_call(fn, 2), [x, torch.zeros(2, 3)], Options())
    fresh, again, same, part, nothing, row, total = joint.outputs
    assert (fresh, again, same, nothing, total) == (Fresh(0), Repeated(0), SameInput(0), Constant(None), Fresh(1))
    assert isinstance(part, View) and (part.of_input, part.base) == (False, 0)
    assert isinstance(row, View) and (row.of_input, row.base) == (True, 1)
    assert joint.mutations == (Mutation(1, grad=False),)
    assert (joint.num_primals, joint.num_outputs, joint.num_forward) == (2, 2, 3)
    assert joint.differentiable == (0, 1) and joint.gradients == (0, None)
    assert [m.shape for m in joint.output_metas] == [(2, 3), (), (2, 3), (2, 3)]


def test_writes_with_and_without_gradients() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(w)
        with torch.no_grad():
            w.zero_()
        return x.sum()

    joint = trace_joint(graph_of_call(fn, 2), [nonleaf(torch.ones(3)), torch.ones(3, requires_grad=True)], Options())
    assert joint.mutations == (Mutation(0, grad=True), Mutation(1, grad=False))
    assert joint.differentiable == (0, 1)
