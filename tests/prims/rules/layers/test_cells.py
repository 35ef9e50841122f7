"""Fused cells of recurrent networks against the same written out; their kernels exist on CUDA only."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, fx

from smelt.graph.ir.meta import meta_of
from smelt.graph.ir.module import GraphModule
from smelt.prims.decompose import decompose

aten = torch.ops.aten


def run(op: torch._ops.OpOverload, args: tuple, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """The decomposition's results; `shapes` of the operator's."""
    graph, tensors = fx.Graph(), [a for a in args if isinstance(a, Tensor)]
    inputs = iter([graph.placeholder(f"x{i}") for i in range(len(tensors))])
    given = tuple(next(inputs) if isinstance(a, Tensor) else a for a in args)
    for node, tensor in zip(graph.nodes, tensors, strict=True):
        node.meta["val"] = meta_of(tensor)
    call = graph.call_function(op, given)
    call.meta["val"] = tuple(meta_of(tensors[0].new_empty(shape)) for shape in shapes)
    items = [graph.call_function(operator.getitem, (call, i)) for i in range(len(shapes))]
    for item, meta in zip(items, call.meta["val"], strict=True):
        item.meta["val"] = meta
    graph.output(tuple(items))
    module = decompose(GraphModule(torch.nn.Module(), graph))
    return list(module(*tensors))


def make(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def lstm(x: Tensor, h: Tensor, c: Tensor, bx: Tensor, bh: Tensor) -> tuple[Tensor, Tensor]:
    take, keep, new, show = (x + h + bx + bh).chunk(4, 1)
    cell = keep.sigmoid() * c + take.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell


def gru(x: Tensor, h: Tensor, old: Tensor, bx: Tensor, bh: Tensor) -> Tensor:
    (xr, xz, xn), (hr, hz, hn) = (x + bx).chunk(3, 1), (h + bh).chunk(3, 1)
    update, new = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
    return new + update * (old - new)


@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_lstm_cell(given: tuple[bool, bool]):
    args = [make(3, 20), make(3, 20), make(3, 5), make(20), make(20)]
    leaves = [a.clone().requires_grad_() for a in args]
    want = lstm(*leaves)
    hidden, cell, space = run(aten._thnn_fused_lstm_cell.default, tuple(args), [(3, 5), (3, 5), (3, 20)])
    torch.testing.assert_close((hidden, cell), (want[0].detach(), want[1].detach()))
    grads = [make(3, 5) if one else None for one in given]
    heads = [w for w, g in zip(want, grads, strict=True) if g is not None]
    dx, _, dc, db, _ = torch.autograd.grad(heads, leaves, [g for g in grads if g is not None])
    back = (*grads, args[2], cell, space, True)
    found = run(aten._thnn_fused_lstm_cell_backward_impl.default, back, [(3, 20), (3, 5), (20,)])
    torch.testing.assert_close(found, [dx, dc, db])


def test_gru_cell():
    args = [make(3, 15), make(3, 15), make(3, 5), make(15), make(15)]
    leaves = [a.clone().requires_grad_() for a in args]
    want = gru(*leaves)
    hidden, space = run(aten._thnn_fused_gru_cell.default, tuple(args), [(3, 5), (3, 25)])
    torch.testing.assert_close(hidden, want.detach())
    grad = make(3, 5)
    wanted = torch.autograd.grad(want, leaves, grad)
    shapes = [(3, 15), (3, 15), (3, 5), (15,), (15,)]
    found = run(aten._thnn_fused_gru_cell_backward.default, (grad, space, True), shapes)
    torch.testing.assert_close(found, list(wanted))
