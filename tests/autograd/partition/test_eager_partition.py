"""The split that saves what backward reads."""

from __future__ import annotations

import pytest
import torch

import smelt
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


class _Scaled(torch.autograd.Function):
    """The derivative of the second argument knows nothing of the tangents; eager saves nothing."""

    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y + x

    @staticmethod
    def backward(ctx, g, _):
        return g * 3, torch.full((2,), 0.5) * 3


def _scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _Scaled.apply(x, y)  # type: ignore[no-untyped-call, no-any-return]


def test_a_derivative_made_of_numbers_is_not_saved() -> None:
    """A hook on what is saved would be asked for it: one of `checkpoint` computes the region again."""
    x, y = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    joint = trace_joint(graph_of_call(_scaled, 2), [x, y], Options())
    forward, backward = split(joint)
    assert forward is not None and backward is not None
    assert len(forward.graph.output_node().args[0]) == joint.num_forward
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        out = smelt.compile(_Scaled.apply, backend="aot_eager")(x, y)
    assert not packed
    assert [g.tolist() for g in torch.autograd.grad(out[0].sum() + out[1].sum(), [x, y])] == [[3.0, 3.0], [1.5, 1.5]]
