"""The split that saves what backward reads."""

from __future__ import annotations

import pytest
import torch

from smelt.autograd.partition.eager_partition import split
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.ir.ancestry import dependents
from smelt.graph.verify import verify
from tests.autograd.joint_examples import MODELS, example, graph_of_call

aten = torch.ops.aten


@pytest.mark.parametrize("name", MODELS)
def test_both_halves_hold_the_invariants(name: str) -> None:
    gm, examples, _ = example(name)
    joint = trace_joint(gm, examples, Options())
    forward, backward = split(joint)
    assert backward is not None
    verify(forward, stage="joint")
    verify(backward, stage="joint")
    outputs = forward.graph.output_node().args[0]
    inputs = [n for n in backward.graph.nodes if n.op == "placeholder"]
    assert len(inputs) == len(outputs) - joint.num_forward + len(joint.differentiable)
    assert len(backward.graph.output_node().args[0]) == sum(k is not None for k in joint.gradients)
    assert not any(n.meta.get("random") for n in backward.graph.nodes)


def test_views_are_not_saved() -> None:
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    joint = trace_joint(graph_of_call(torch.nn.functional.linear, 2), [x, w], Options())
    forward, _ = split(joint)
    saved = forward.graph.output_node().args[0][joint.num_forward :]
    assert {n.op for n in saved} == {"placeholder"}


def test_without_gradients_there_is_no_backward() -> None:
    joint = trace_joint(graph_of_call(torch.exp, 1), [torch.zeros(3)], Options())
    assert split(joint) == (joint.module, None)


def test_a_gradient_that_needs_no_tangent_is_saved() -> None:
    x = torch.randn(3, requires_grad=True)
    joint = trace_joint(graph_of_call(lambda x: (x * 0.0).detach() + x * 0, 1), [x], Options())
    forward, backward = split(joint)
    saved = forward(x)[joint.num_forward :]
    assert torch.equal(backward(*saved, torch.ones(3))[0], torch.zeros(3))


def test_dependents() -> None:
    gm = graph_of_call(torch.add, 2)
    a, b, total, out = gm.graph.nodes
    assert dependents(gm.graph.nodes, [b]) == {b, total, out}
