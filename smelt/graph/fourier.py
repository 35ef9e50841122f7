"""The strides of Fourier transforms on a CPU: another order of dimensions than the meta kernels tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.place import Layout, layout_for

aten = torch.ops.aten


def in_order(answer: Layout, args: Sequence[Any]) -> Layout:
    """`answer`, its dimensions in the memory order that the kernel gives them: the order of a tiny transform.

    The libraries sort dimensions by the strides of what they transform; lengths above 1 do not matter.

    Args:
        answer: what the meta kernel says.
        args: of `_fft_r2c`, `_fft_c2c` or `_fft_c2r`.
    """
    val, shape = args[0].place.layout.val, answer.val.shape
    if not answer.val.numel or len(shape) < 2:
        return answer
    tiny = torch.empty_strided([min(n, 2) for n in val.shape], _tiny_stride(val), dtype=val.dtype).zero_()
    onesided = answer.val.dtype.is_complex != val.dtype.is_complex and answer.val.dtype.is_floating_point
    with torch.no_grad():
        if onesided:
            out = aten._fft_c2r(tiny, args[1], args[2], min(args[3], 2))
        else:
            op = aten._fft_c2c if val.dtype.is_complex else aten._fft_r2c
            out = op(tiny, *args[1:])
    step, stride = 1, [0] * out.ndim
    for d in sorted(range(out.ndim), key=lambda d: (out.stride(d), out.shape[d])):
        stride[d] = step
        step *= shape[d]
    return layout_for(shape, answer.val.dtype, tuple(stride), answer.val.device)


def _tiny_stride(val: Any) -> list[int]:
    """Strides for lengths of at most 2, in the order of the dimensions of `val`; those that repeat still do."""
    stride, step = [0] * val.ndim, 1
    for d in sorted(range(val.ndim), key=lambda d: (val.stride[d], val.shape[d], -d)):
        if val.stride[d]:
            stride[d] = step
            step *= min(val.shape[d], 2)
    return stride
