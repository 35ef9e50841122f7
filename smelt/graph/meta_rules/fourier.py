"""Strides of Fourier transforms on a CPU, whose kernels order dimensions differently from the meta kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.storage_view import layout_for
from smelt.graph.meta_rules.elementwise import val_of

aten = torch.ops.aten


def transformed(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule for `_fft_r2c`, `_fft_c2c` and `_fft_c2r`: runs the transform on a tiny tensor, whose result has its
    dimensions in the same order in memory.

    The libraries order dimensions by the strides of their input; sizes matter only if they are 1.
    """
    val, dims = val_of(args[0]), args[1]
    if kwargs or not _is_known(val) or not _are_dims(dims, val.ndim):
        return None
    last, shape, dtype = dims[-1] % val.ndim, list(val.shape), val.dtype
    tiny = torch.empty_strided([min(n, 2) for n in shape], _tiny_stride(val), dtype=dtype).zero_()
    rest = args[2:]
    if func is aten._fft_c2r.default:
        if not dtype.is_complex or args[3] < 1:
            return None
        shape[last], dtype, rest = args[3], dtype.to_real(), (args[2], min(args[3], 2))
    elif func is aten._fft_r2c.default:
        if not dtype.is_floating_point:
            return None
        shape[last], dtype = shape[last] // 2 + 1 if args[3] else shape[last], dtype.to_complex()
    elif not dtype.is_complex:
        return None
    with torch.no_grad():
        out = func(tiny, dims, *rest)
    step, stride = 1, [0] * out.ndim
    for d in sorted(range(out.ndim), key=lambda d: (out.stride(d), out.shape[d])):
        stride[d] = step
        step *= shape[d]
    return layout_for(tuple(shape), dtype, tuple(stride), val.device)


def _are_dims(dims: Sequence[Any], ndim: int) -> bool:
    return bool(dims) and all(type(d) is int and -ndim <= d < ndim for d in dims)


def _is_known(val: Any) -> bool:
    """Whether a value is on the CPU and has a known number of dimensions, at least two, with elements."""
    return bool(not val.symbolic and val.device.type == "cpu" and val.ndim >= 2 and val.numel)


def _tiny_stride(val: Any) -> list[int]:
    """Returns strides for the sizes of `val`, reduced to at most 2, in the same order in memory; strides of 0 remain 0.

    Strides that differ in `val` also differ in the result, even next to a dimension of size 1.
    """
    stride, step, inner = [0] * val.ndim, 1, None
    for d in sorted(range(val.ndim), key=lambda d: (val.stride[d], val.shape[d], -d)):
        if val.stride[d]:
            if inner is not None and val.stride[d] > val.stride[inner] and step == stride[inner]:
                step += 1
            stride[d], inner = step, d
            step *= min(val.shape[d], 2)
    return stride
