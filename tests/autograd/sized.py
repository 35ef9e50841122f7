"""Torch-level graphs with symbolic sizes, and programs that are one graph for every size."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.nn import functional

from smelt.graph.ir.meta import TensorMeta, contiguous_stride

CPU = torch.device("cpu")

MATMUL_PINS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""The batched matrix product of older releases reads sizes as plain numbers, which pins them."""


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


def positions(x):
    return torch.arange(x.shape[1])


KERNEL = torch.linspace(-1, 1, 5 * 12 * 3).view(5, 12, 3)

CASES = {
    "view": lambda x: x.view(x.shape[0], -1, 4, 3).transpose(1, 2).reshape(x.size(0), 4, -1) * 2,
    "flat": lambda x: x.flatten().sum() + x.flatten(1).mean(),
    "mean": lambda x: x.mean((0, 1)) / x.size(0) + x.shape[1],
    "cat": lambda x: torch.cat([x, x[:, 1:], x[:, :-1] + 1], 1)[:, ::2],
    "select": lambda x: x[:, -1] + x[0, 0] - x[:, 1],
    "stack": lambda x: torch.stack([x, x.exp()], 1).unbind(1)[0],
    "expand": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x.mean(-1, keepdim=True).expand_as(x),
    "softmax": lambda x: torch.softmax(x @ x.transpose(1, 2), -1) @ x,
    "norm": lambda x: functional.layer_norm(x, (12,)) + functional.group_norm(x.mT, 3).mT,
    "pad": lambda x: functional.pad(x, (1, 2, 0, 3)),
    "split": lambda x: torch.cat(x.split(4, -1)[::-1], -1) * x.chunk(2, -1)[0].repeat(1, 1, 2),
    "where": lambda x: torch.where(torch.ones(x.shape[1], x.shape[1]).tril()[None] > 0, x @ x.mT, -1.0).amax(-1),
    "arange": lambda x: x + torch.arange(x.shape[1])[None, :, None] * 2,
    "reduce": lambda x: x.var(1) + x.amax(1) + x.max(1).values - x.argmax(1) + x.prod(-1).sum(),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.unflatten(-1, (3, 4)).transpose(1, 2)] * 3),
    "write": lambda x: x.clone().mul_(2)[:, 0].add_(x.sum(1)),
    "index": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)] + x.flip(1),
    "gather": lambda x: x.gather(1, x.argsort(1)) + x.sort(1).values,
    "masks": lambda x: (x @ x.mT).masked_fill(positions(x)[None] > positions(x)[:, None], -9.0).softmax(-1) @ x,
    "one hot": lambda x: functional.one_hot(positions(x) % 12, 12) * x,
    "loss": lambda x: functional.cross_entropy(x.flatten(0, 1), torch.arange(x.shape[0] * x.shape[1]) % 12),
    "squares": lambda x: functional.mse_loss(x, x.flip(1)) + functional.smooth_l1_loss(x, x.flip(0)),
    "embedding": lambda x: functional.embedding(positions(x).flip(0) % 2, x[0]),
    "einsum": lambda x: torch.einsum("bld,bmd->blm", x, x).triu(1),
    "cumsum": lambda x: x.cumsum(1) + x.cumprod(-1),
    "topk": lambda x: x.topk(2, 1).values + x.kthvalue(2, 1, keepdim=True).values,
    "roll": lambda x: x.roll(1, 1) + x.roll((-1, 2), (0, 2)),
    "repeat": lambda x: x.repeat_interleave(2, 1) + x.tile(2, 2, 1)[: x.shape[0]],
    "unfold": lambda x: x.unfold(1, 2, 1).sum(-1),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x) + x.index_add(1, positions(x), x),
    "chunk": lambda x: x.chunk(2, 1)[0].sum(1) - x.chunk(2, 1)[1].sum(1),
    "causal": lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention mask": lambda x: functional.scaled_dot_product_attention(
        *[x.unflatten(-1, (3, 4)).transpose(1, 2)] * 3, attn_mask=positions(x)[None] <= positions(x)[:, None]
    ),
    "deviation": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5) + x.var((0, 1)),
    "batch norm": lambda x: functional.batch_norm(x.mT, None, None, training=True),
    "pool": lambda x: functional.adaptive_avg_pool1d(x.mT, 1) + functional.max_pool2d(x.mT, (1, 2)).sum(-1, True),
    "convolution": lambda x: functional.conv_transpose1d(functional.conv1d(x.mT, KERNEL, padding=1), KERNEL, stride=2),
    "dropout": lambda x: functional.dropout(x, 0.3) * 2,
    "clamp": lambda x: (x * 9).clamp(max=x.shape[1]) / x.shape[0],
    "view as": lambda x: x.reshape(-1).view_as(x) + x.flatten().reshape_as(x),
}
"""Programs of a tensor of shape (any, any, 12)."""

NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(MATMUL_PINS, reason="matmul of this torch reads plain sizes"))
    if name in ("softmax", "where", "masks", "causal")
    else name
    for name in CASES
]
