"""Rules for symbolic sizes give the layouts that real operators give, on tensors whose memory is not row by row."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from smelt.autograd.call.sized import meta_in_numbers
from smelt.graph.ir.meta import TensorMeta, channels_last_stride, contiguous_stride
from smelt.graph.trace.trace import TraceMode, trace_like
from smelt.shapes.assumptions import Assumptions

aten = torch.ops.aten
CPU = torch.device("cpu")

TURNED = {
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([0]), 1.0),
    "scatter": lambda x: x.scatter(0, torch.zeros_like(x, dtype=torch.int64), x),
    "scatter_add": lambda x: x.scatter_add(0, torch.zeros_like(x, dtype=torch.int64), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x, "sum"),
    "index_add": lambda x: x.index_add(0, torch.arange(x.shape[0]), x),
    "index_copy": lambda x: x.index_copy(0, torch.arange(x.shape[0]), x),
    "index": lambda x: x[torch.arange(x.shape[0])],
    "index in the middle": lambda x: x[:, torch.arange(x.shape[1])],
    "indices apart": lambda x: x[torch.arange(2), :, torch.arange(2)],
    "index_select": lambda x: x.index_select(0, torch.arange(x.shape[0])),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, torch.tensor(1.0)),
    "masked_fill with a number": lambda x: x.masked_fill(x > 0.5, 1.0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0.5, x),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "tril": lambda x: x.tril(),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(2, 0),
    "median": lambda x: x.median(0),
    "kthvalue": lambda x: x.kthvalue(2, 0),
    "variance": lambda x: x.var(0),
    "norm": lambda x: x.norm(2, 0, keepdim=True),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "count": lambda x: x.count_nonzero(0),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "diagonal": lambda x: x.diagonal(0, 0, 2),
    "diag_embed": lambda x: x.diag_embed(),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "glu": lambda x: functional.glu(x[:, :, :4], 2),
    "softmax": lambda x: x.softmax(0),
    "slice_scatter": lambda x: x.slice_scatter(x[:2], 0, 0, 2),
    "select_scatter": lambda x: x.select_scatter(x[0], 0, 0),
    "losses": lambda x: [
        functional.mse_loss(x, x, reduction="none"),
        functional.smooth_l1_loss(x, x, reduction="none"),
        functional.binary_cross_entropy(x, x, reduction="none"),
        functional.mse_loss(x.bfloat16(), x, reduction="none"),
        functional.smooth_l1_loss(x.bfloat16(), x),
        functional.huber_loss(x.bfloat16(), x, reduction="none"),
    ],
    "complex": lambda x: torch.complex(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "dropout": lambda x: aten.native_dropout(x, 0.5, True),
    "bernoulli": lambda x: x.bernoulli(0.5),
    "uniform": lambda x: x.clone().uniform_(),
    "split": lambda x: x.split(2, 0),
    "chunk": lambda x: x.chunk(2, 0),
    "stack": lambda x: torch.stack([x, x], 2),
    "pad": lambda x: functional.pad(x, (1, 1)),
    "padded by its ends": lambda x: functional.pad(x, (1, 2), mode="replicate"),
    "rsub": lambda x: 1 - x.mT,
}
IMAGES = {
    "convolution": lambda x: functional.conv2d(x, torch.ones(6, 4, 3, 3), stride=2, padding=1),
    "max_pool": lambda x: functional.max_pool2d(x, 2, return_indices=True),
    "avg_pool": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, (2, 2)),
    "adaptive max": lambda x: functional.adaptive_max_pool2d(x, (2, 2), return_indices=True),
    "reflection": lambda x: functional.pad(x, (1, 2, 1, 0), mode="reflect"),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x, 2),
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "group norm": lambda x: functional.group_norm(x, 2),
    "unfold": lambda x: functional.unfold(x, 2),
    "grid": lambda x: functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
    "upsample": lambda x: aten.upsample_bilinear2d(x, [9, 8], False),
    "cat": lambda x: torch.cat([x, x], 1),
    "sum of formats": lambda x: x + x.contiguous(),
}


ASK = {"diagonal", "glu", "cdist", "split", "reflection"}
"""Programs that need an answer: which side is shorter, how many parts there are, which algorithm is faster."""


def check(name, fn, val, shape):
    """The layouts of the trace, put in numbers, beside those of real tensors."""
    env = val.shape[0].owner
    with TraceMode():
        traced = fn(trace_like(val))
    assert bool(env.assumed) == (name in ASK), [str(fact) for fact in env.assumed]
    assert not any(fact.sign == "==" for fact in env.assumed)
    for numbers in (shape, [n + 2 for n in shape]):
        values = dict(zip(env.symbols, numbers, strict=True))
        if not all(fact.holds(values) for fact in env.assumed):
            continue
        meta = meta_in_numbers(val, values)
        real = fn(torch.empty_strided(meta.shape, meta.stride).copy_(torch.rand(meta.shape)))
        for ours, theirs in zip(flat(traced), flat(real), strict=True):
            made = meta_in_numbers(ours.storage_view.layout.val, values)
            assert (made.shape, made.stride, made.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)


def flat(result):
    return result if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", TURNED)
def test_layouts_of_transposed_tensors(name):
    env = Assumptions()
    a, b, c = (env.symbol(n) for n in (4, 5, 6))
    check(name, TURNED[name], TensorMeta((a, b, c), torch.float32, (1, c * a, a), CPU), (4, 5, 6))


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("name", IMAGES)
def test_layouts_of_images(name, last):
    env = Assumptions()
    n, h, w = (env.symbol(size) for size in (2, 6, 8))
    shape = (n, 4, h, w)
    stride = channels_last_stride(shape) if last else contiguous_stride(shape)
    check(name, IMAGES[name], TensorMeta(shape, torch.float32, stride, CPU), (2, 6, 8))
