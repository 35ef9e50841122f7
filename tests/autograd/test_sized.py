"""Graphs for every size: one joint trace, calls at many sizes, no assumption that was not needed."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from smelt.autograd.eager import compile_aot_eager
from smelt.base.options import Options
from smelt.graph.meta import TensorMeta, contiguous_stride
from smelt.shapes.assumptions import Assumptions

CPU = torch.device("cpu")


def graph_of(fn, metas):
    """A torch-level graph of one node whose placeholders have symbolic metadata."""
    graph = fx.Graph()
    inputs = []
    for i, meta in enumerate(metas):
        node = graph.placeholder(f"x{i}")
        if meta is not None:
            node.meta["val"] = meta
        inputs.append(node)
    out = graph.call_function(fn, tuple(inputs))
    graph.output((out,))
    return fx.GraphModule({}, graph)


def symbolic(*shape):
    return TensorMeta(shape, torch.float32, contiguous_stride(shape), CPU)


CASES = {
    "view": lambda x: x.view(x.shape[0], -1, 4, 3).transpose(1, 2).reshape(x.size(0), 4, -1) * 2,
    "flat": lambda x: x.flatten().sum() + x.flatten(1).mean(),
    "mean": lambda x: x.mean((0, 1)) / x.size(0) + x.shape[1],
    "cat": lambda x: torch.cat([x, x[:, 1:], x[:, :-1] + 1], 1)[:, ::2],
    "select": lambda x: x[:, -1] + x[0, 0] - x[:, 1],
    "stack": lambda x: torch.stack([x, x.exp()], 1).unbind(1)[0],
    "expand": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x.mean(-1, keepdim=True).expand_as(x),
    "softmax": lambda x: torch.softmax(x @ x.transpose(1, 2), -1) @ x,
    "norm": lambda x: nn.functional.layer_norm(x, (12,)) + nn.functional.group_norm(x.mT, 3).mT,
    "pad": lambda x: nn.functional.pad(x, (1, 2, 0, 3)),
    "split": lambda x: torch.cat(x.split(4, -1)[::-1], -1) * x.chunk(2, -1)[0].repeat(1, 1, 2),
    "where": lambda x: torch.where(torch.ones(x.shape[1], x.shape[1]).tril()[None] > 0, x @ x.mT, -1.0).amax(-1),
    "arange": lambda x: x + torch.arange(x.shape[1])[None, :, None] * 2,
    "reduce": lambda x: x.var(1) + x.amax(1) + x.max(1).values - x.argmax(1) + x.prod(-1).sum(),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(*[x.unflatten(-1, (3, 4)).transpose(1, 2)] * 3),
    "write": lambda x: x.clone().mul_(2)[:, 0].add_(x.sum(1)),
    "index": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)] + x.flip(1),
    "gather": lambda x: x.gather(1, x.argsort(1)) + x.sort(1).values,
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_every_size(name):
    fn = CASES[name]
    env = Assumptions(lambda: name)
    example = torch.randn(4, 6, 12, requires_grad=True)
    run = compile_aot_eager(graph_of(fn, [symbolic(env.symbol(4), env.symbol(6), 12)]), [example], Options())
    assert not env.assumed
    for batch, length in ((4, 6), (2, 3), (7, 19), (5, 5), (3, 64)):
        x = torch.randn(batch, length, 12, requires_grad=True)
        (ours,), expected = run(x), fn(x)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
        assert ours.stride() == expected.stride()
        tangent = torch.randn_like(expected)
        (mine,), (theirs,) = torch.autograd.grad(ours, x, tangent), torch.autograd.grad(expected, x, tangent)
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


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
