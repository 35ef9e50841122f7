"""Prim graphs for every size: decomposed and partitioned once, run at many sizes by the prims' references."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from smelt.autograd.call.calling_convention import wrap
from smelt.autograd.eager import eager_program
from smelt.autograd.partition.partition import partition
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.prims.decompose import decompose
from smelt.prims.ops import PRIMS
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import Size
from tests.autograd.sized import CASES, NAMES, graph_of, symbolic

OPTIONS = dataclasses.replace(Options(), eager_rng=True)


@pytest.mark.parametrize("name", NAMES)
def test_prims_of_one_graph_at_every_size(name):
    fn, env = CASES[name], Assumptions(lambda: name)
    example = torch.randn(4, 6, 12, requires_grad=True)
    joint = trace_joint(graph_of(fn, [symbolic(env.symbol(4), env.symbol(6), 12)]), [example], OPTIONS)
    forward, backward = partition(decompose(joint.module, OPTIONS), joint, OPTIONS)
    assert not env.assumed
    assert backward is not None
    numbers_only_in_creation(forward)
    run = wrap(joint, eager_program(forward), eager_program(backward))
    for batch, length in ((4, 6), (2, 3), (7, 19), (5, 5)):
        x = torch.randn(batch, length, 12, requires_grad=True)
        torch.manual_seed(0)
        (ours,) = run(x)
        torch.manual_seed(0)
        expected = fn(x)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        tangent = torch.randn_like(expected)
        (mine,), (theirs,) = torch.autograd.grad(ours, x, tangent), torch.autograd.grad(expected, x, tangent)
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def numbers_only_in_creation(module):
    """Later stages meet symbolic numbers as values of `full` and `iota` only; elsewhere they are places and shapes."""
    for node in module.graph.nodes:
        if getattr(node.target, "kind", None) is PRIMS["add"].kind:
            assert not any(isinstance(a, Size) for a in node.args), node.format_node()


def test_a_variance_whose_correction_is_no_whole_number():
    env = Assumptions()
    fn = lambda x: x.var((0, 1), correction=1.25)  # noqa: E731
    joint = trace_joint(graph_of(fn, [symbolic(env.symbol(4), env.symbol(6), 12)]), [torch.randn(4, 6, 12)], OPTIONS)
    module = decompose(joint.module, OPTIONS)
    assert not env.assumed
    for size in ((4, 6), (2, 9)):
        x = torch.randn(*size, 12)
        torch.testing.assert_close(eager_program(module)([x, *size])[0], fn(x))


def test_resampling_by_any_factor():
    """Sizes in numbers stand beside symbolic ones: whole factors repeat elements, others look places up."""
    env = Assumptions()
    shape = (env.symbol(2), 3, env.symbol(4), env.symbol(5))
    upsample = torch.ops.aten.upsample_bilinear2d.default
    nearest = torch.ops.aten.upsample_nearest2d.default

    def fn(x):
        height, width = x.shape[2:]
        return upsample(x, [height + 3, 7], False), nearest(x, [2 * height, width + 1])

    joint = trace_joint(
        graph_of(lambda x: sum(t.mean() for t in fn(x)), [symbolic(*shape)]), [torch.randn(2, 3, 4, 5)], OPTIONS
    )
    module = decompose(joint.module, OPTIONS)
    assert not env.assumed
    for size in ((2, 4, 5), (3, 9, 6)):
        x = torch.randn(size[0], 3, *size[1:])
        (ours,) = eager_program(module)([x, *size])
        torch.testing.assert_close(ours, sum(t.mean() for t in fn(x)))
