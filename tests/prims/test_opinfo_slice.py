"""Breadth: every ATen operator that a list of torch functions runs, forward and backward, on OpInfo's samples."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.opinfo import database
from tests.prims.aten_check import CheckMode

NAMES = set(
    """
    add sub mul div remainder fmod pow exp log1p sigmoid tanh where clamp maximum eq lt logical_and masked_fill lerp
    sum mean var_mean std amax argmax logsumexp cumsum sort topk linalg.vector_norm softmax log_softmax
    nn.functional.gelu nn.functional.silu nn.functional.relu nn.functional.hardswish nn.functional.elu
    nn.functional.softplus nn.functional.glu nn.functional.layer_norm nn.functional.group_norm
    nn.functional.batch_norm nn.functional.rms_norm nn.functional.cross_entropy nn.functional.nll_loss
    nn.functional.mse_loss nn.functional.binary_cross_entropy nn.functional.embedding nn.functional.conv2d
    nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.linear
    nn.functional.scaled_dot_product_attention nn.functional.pixel_shuffle nn.functional.interpolate
    cat stack split unbind index_select gather scatter scatter_add index_add index_put take_along_dim masked_scatter
    tril roll flip diagonal unfold expand permute transpose narrow select repeat tile arange eye addmm baddbmm matmul
    """.split()
)
SAMPLES = 4
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
CASES = [(info, dtype) for info in database.op_db if info.name in NAMES for dtype in DTYPES if dtype in info.dtypes]


def gradients(result: Any) -> None:
    """Run backward from every floating result that has history."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    losses = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad and r.is_floating_point()]
    if losses:
        torch.stack([x.float() for x in losses]).sum().backward()


@pytest.mark.parametrize(("info", "dtype"), CASES, ids=lambda x: getattr(x, "full_name", str(x).removeprefix("torch.")))
def test_operators(info: Any, dtype: torch.dtype):
    differentiable = info.supports_autograd and dtype.is_floating_point and dtype in info.backward_dtypes
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=differentiable))
    for sample in itertools.islice(samples, 0, None, max(1, len(samples) // SAMPLES)):
        with CheckMode(scale=2.0):
            gradients(info.op(sample.input, *sample.args, **sample.kwargs))
