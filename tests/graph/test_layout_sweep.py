"""A slice of the sweep over layouts: `python -m tests.graph.layout_sweep` does all operators."""

from __future__ import annotations

import pytest
import torch

from tests.graph.layout_sweep import of_operator
from tests.opinfo import database

SLICE = {
    "add": "a size that may be 1 tells nothing of the order of dimensions",
    "addcdiv": "the same, of three operands",
    "addmv": "without columns the summand as it is",
    "addr": "elementwise: a column and a row",
    "cdist": "gradients for each pair of batches",
    "complex": "elementwise",
    "diag_embed": "rows, whatever the argument's strides",
    "expand": "new dimensions of size 1 have the strides of what is within",
    "nn.functional.adaptive_max_pool3d": "volumes lie in rows",
    "nn.functional.adaptive_avg_pool3d": "gradients of volumes lie in rows",
    "nn.functional.avg_pool3d": "volumes lie in rows",
    "nn.functional.binary_cross_entropy_with_logits": "computed into `1 - target`",
    "nn.functional.interpolate.bicubic": "gradients lie in rows",
    "isinf": "of whole numbers like its argument",
    "nn.functional.prelu": "gradients like the argument",
    "put": "like its argument",
    "roll": "without elements the strides that it has",
    "rot90": "flipped, which keeps the order of dimensions, and transposed",
    "_unsafe_masked_index": "in rows",
    "sort": "without elements the strides that it has",
    "view": "without elements the strides that it has",
}


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("name", SLICE)
def test_layouts(name: str, dtype: str) -> None:
    infos = [info for info in database.op_db if name in (info.name, info.full_name)]
    assert infos
    for info in infos:
        if getattr(torch, dtype) in info.supported_dtypes("cpu"):
            assert of_operator(info, dtype, samples=1, each=1) == {}


SIZES = {
    "matrix_exp": "without elements the strides that it has",
    "nn.functional.adaptive_avg_pool2d": "channels last without elements",
    "fft.rfft2": "a size of 1 that lies in a gap",
    "argwhere": "rows of nothing are columns as well",
    "stack": "the stacked dimension beside one of size 1",
    "rsub": "the iterator meets the operands in the other order",
    "addr": "elementwise: a column and a row",
    "fill": "without elements the strides that it has",
    "linalg.vector_norm": "without elements in rows",
    "nn.functional.binary_cross_entropy": "without elements the strides of the argument",
    "nn.functional.channel_shuffle": "without elements the strides that it has",
    "constant_pad_nd": "a computed size that is 0 at this call",
    "nn.functional.nll_loss": "a slice whose examples stay inside memory",
    "nn.functional.pixel_unshuffle": "without elements the strides that it has",
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_0_and_1(name: str) -> None:
    infos = [info for info in database.op_db if name in (info.name, info.full_name)]
    assert infos
    for info in infos:
        assert of_operator(info, "float32", samples=2, each=1, sizes=True) == {}
