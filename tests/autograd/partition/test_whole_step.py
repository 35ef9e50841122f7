"""Backwards inside of a graph: what they compute again is the same, and waits for the gradient that it is read with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from smelt.autograd.partition.recompute import is_heavy
from smelt.autograd.partition.whole_step import MAX_KEPT_BYTES, with_recomputation
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.nodes.gradients import gradients
from smelt.loops.lower import lower
from smelt.prims.decompose import decompose
from smelt.schedule.machine import CPU, GPU, Machine
from smelt.schedule.plan import schedule

Layer = Callable[[torch.Tensor], torch.Tensor]
ROWS, WIDTH, DEPTH = 512, 64, 3


def prims_of(
    derivatives: int = 1, leaf: Layer = F.gelu, call: Callable[..., object] = torch.autograd.grad
) -> fx.GraphModule:
    """Steps of SGD on a few layers, each with a batch and a backward of its own; gradients add up over the batches."""
    graph = fx.Graph()
    weights = [graph.placeholder(f"w{i}") for i in range(DEPTH)]
    batches = [graph.placeholder(f"x{i}") for i in range(derivatives)]
    node = graph.call_function
    total: list[fx.Node] | None = None
    losses = []
    for x in batches:
        for weight in weights:
            x = node(leaf, (node(torch.mm, (x, weight)),))
        loss = node(torch.mean, (node(torch.square, (x,)),))
        losses.append(node(torch.detach, (loss,)))
        found = node(call, ([loss], weights, [None]))
        each = [node(operator.getitem, (found, i)) for i in range(DEPTH)]
        total = each if total is None else [node(torch.add, pair) for pair in zip(total, each, strict=True)]
    assert total is not None
    old = [node(torch.detach, (weight,)) for weight in weights]
    new = [node(torch.sub, pair, {"alpha": 0.5}) for pair in zip(old, total, strict=True)]
    graph.output((*losses, *new))
    inputs = [torch.randn(WIDTH, WIDTH).requires_grad_() for _ in range(DEPTH)]
    inputs += [torch.randn(ROWS, WIDTH) for _ in range(derivatives)]
    joint = trace_joint(fx.GraphModule(nn.Module(), graph), inputs, Options())
    assert not joint.differentiable
    return decompose(joint.module, Options())


def twice(old: fx.GraphModule, new: fx.GraphModule) -> list[fx.Node]:
    """The second copies in a graph."""
    names = {n.name for n in old.graph.nodes}
    return [n for n in new.graph.nodes if n.name not in names]


def values(module: fx.GraphModule) -> Sequence[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    metas = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    with torch.no_grad():
        return module(*(torch.randn(m.shape, generator=generator).to(m.dtype) for m in metas))


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("derivatives", [1, 2])
@pytest.mark.parametrize("call", [torch.autograd.grad, gradients])
def test_values_stay_the_same(call, derivatives, budget):
    old = prims_of(derivatives, call=call)
    new = with_recomputation(old, budget)
    new.graph.lint()
    assert twice(old, new)
    torch.testing.assert_close(values(new), values(old), rtol=0, atol=0)


def test_products_are_computed_twice_only_for_a_budget():
    old = prims_of()
    assert not any(map(is_heavy, twice(old, with_recomputation(old, 1.0))))
    assert any(map(is_heavy, twice(old, with_recomputation(old, 0.0))))


def test_copies_wait_for_a_gradient_that_is_there_before():
    old = prims_of(2)
    new = with_recomputation(old, 1.0)
    position = {n.name: at for at, n in enumerate(new.graph.nodes)}
    derivative = {n.name: n.meta.get("derivative") for n in new.graph.nodes}
    waiting = [n for n in new.graph.nodes if "after" in n.meta]
    assert waiting
    for node in waiting:
        assert position[node.meta["after"]] < position[node.name]
        assert derivative[node.meta["after"]] is not None
    copies = set(twice(old, new))
    last = {n for n in copies if "after" not in n.meta}
    assert len(last) < len(copies) / 2  # of the last layer: its gradient is the first


def test_small_values_are_kept():
    old = prims_of(leaf=lambda x: F.gelu(x) * x.sum(0).sigmoid())
    copies = [n for n in twice(old, with_recomputation(old, 1.0)) if n.meta["val"].nbytes <= MAX_KEPT_BYTES]
    assert not copies


def test_a_graph_without_a_backward_stays_as_it_is():
    graph = fx.Graph()
    graph.output((graph.call_function(F.gelu, (graph.placeholder("x"),)),))
    joint = trace_joint(fx.GraphModule(nn.Module(), graph), [torch.randn(4)], Options())
    module = decompose(joint.module, Options())
    assert with_recomputation(module, 1.0) is module


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_no_kernel_computes_for_both_ends_of_the_step(machine: Machine):
    """A value and its second copy are in one kernel at most where the backward begins."""
    old = prims_of()
    new = with_recomputation(old, 1.0)
    copies = {n.name for n in twice(old, new) if "after" in n.meta}
    plan = schedule(lower(new), Options(), None, machine)
    at = {
        name: step for step, number in enumerate(plan.steps) if number in plan.groups for name in plan.made_by(number)
    }
    made = sorted(at[name] for name in copies if name in at)
    products = [step for step, number in enumerate(plan.steps) if number in plan.externs]
    for group in plan.groups.values():
        early = [n for n in group.members if n.removesuffix("_again") == n and f"{n}_again" in copies]
        assert not (early and copies & group.members.keys()), group.label()
    assert made and all(step > products[DEPTH - 1] for step in made)
