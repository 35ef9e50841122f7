"""Graphs for every size: one joint trace, calls at many sizes, no assumption that was not needed."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from smelt.autograd.eager import compile_aot_eager
from smelt.base.options import Options
from smelt.shapes.assumptions import Assumptions
from tests.autograd.sized import CASES, NAMES, graph_of, symbolic


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_for_every_size(name):
    fn = CASES[name]
    env = Assumptions(lambda: name)
    example = torch.randn(4, 6, 12, requires_grad=True)
    run = compile_aot_eager(graph_of(fn, [symbolic(env.symbol(4), env.symbol(6), 12)]), [example], Options())
    assert not env.assumed
    for batch, length in ((4, 6), (2, 3), (7, 19), (5, 5), (3, 64)):
        x = torch.randn(batch, length, 12, requires_grad=True)
        torch.manual_seed(0)
        (ours,) = run(x)
        torch.manual_seed(0)
        expected = fn(x)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
        assert ours.stride() == expected.stride()
        tangent = torch.randn_like(expected)
        (mine,), (theirs,) = torch.autograd.grad(ours, x, tangent), torch.autograd.grad(expected, x, tangent)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_images():
    """A residual block over any batch, height and width."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    model = nn.Sequential(block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    names, state = zip(*[*model.named_parameters(), *model.named_buffers()], strict=True)

    def fn(x, *given):
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), (x,))

    env = Assumptions()
    shape = (env.symbol(2), 3, env.symbol(32), env.symbol(40))
    graph = graph_of(fn, [symbolic(*shape), *[None] * len(state)])
    run = compile_aot_eager(graph, [torch.randn(2, 3, 32, 40), *state], Options())
    assert not env.assumed, [str(f) for f in env.assumed]
    for size in ((2, 32, 40), (5, 33, 48), (3, 64, 64), (2, 8, 9)):
        x = torch.randn(size[0], 3, *size[1:])
        torch.testing.assert_close(run(x, *copies(state))[0], fn(x, *copies(state)))


def copies(tensors):
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


SCALED = {
    "twice": lambda x: functional.interpolate(x, scale_factor=2.0, mode="nearest"),
    "half": lambda x: functional.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "to a size": lambda x: functional.interpolate(x, (9, 7), mode="bicubic", align_corners=True),
    "as another": lambda x: functional.interpolate(functional.max_pool2d(x, 2), x.shape[2:]) + x,
    "rows": lambda x: functional.max_pool1d(x.flatten(2), 3, 2, padding=1),
}


@pytest.mark.parametrize("name", SCALED)
def test_images_of_other_sizes(name):
    """Functions whose C++ part reads sizes as numbers."""
    env, graph = Assumptions(), fx.Graph()
    images = graph.placeholder("x")
    images.meta["val"] = symbolic(env.symbol(2), 3, env.symbol(8), env.symbol(12))
    fn = SCALED[name]
    program = fx.Tracer().trace(fn)
    graph.output((graph.graph_copy(program, {next(iter(program.nodes)): images}),))
    module = fx.GraphModule({}, graph)
    run = compile_aot_eager(module, [torch.randn(2, 3, 8, 12, requires_grad=True)], Options())
    assert not env.assumed
    for size in ((2, 8, 12), (3, 6, 10), (4, 9, 17)):
        x = torch.randn(size[0], 3, *size[1:], requires_grad=True)
        (ours,), expected = run(x), fn(x)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
        (mine,), (theirs,) = torch.autograd.grad(ours.sum(), x), torch.autograd.grad(expected.sum(), x)
        torch.testing.assert_close(mine, theirs)
