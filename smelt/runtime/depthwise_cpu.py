"""The gradients of depthwise convolutions on the CPU: by their weight with native/depthwise.c, the others by ATen.

oneDNN's, for images in channels-last memory, takes up to 256 weights of scratch for each weight: 12 MiB a call where
the whole training step of a small model takes 40. The native one takes next to none and is faster: see `convolution`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.externs import Candidate, Spec
from smelt.runtime.memory import fresh

LAST = torch.channels_last
BACKWARD = torch.ops.aten.convolution_backward.default

MOST_TAPS = 121
"""Elements of a window, whose sums each thread keeps on its stack."""


def fits(params: Mapping[str, Any], grad: Spec, x: Spec, w: Spec) -> bool:
    """Whether it is one channel a group of float32, with a window that is not too large."""
    if params["transposed"] or len(x.shape) != 4 or w.shape[:2] != (x.shape[1], 1) or params["groups"] != x.shape[1]:
        return False
    if any(spec.dtype is not torch.float32 or 0 in spec.shape for spec in (grad, x, w)):
        return False
    return math.prod(w.shape[2:]) <= MOST_TAPS


def last(image: Spec) -> Spec:
    """The image in channels-last memory."""
    _, channels, height, width = image.shape
    return Spec(image.shape, (height * width * channels, 1, width * channels, channels), image.dtype)


def weight_gradient(params: Mapping[str, Any], grad: Spec, x: Spec, out: Spec) -> Callable[..., torch.Tensor]:
    """(grad, x) -> the gradient by the weight, for images whose neighbouring channels are neighbours in memory."""
    numbers = (
        *x.shape[:2],
        *(*grad.shape[2:], grad.stride[0], *grad.stride[2:]),
        *(*x.shape[2:], x.stride[0], *x.stride[2:]),
        *(*out.shape[2:], out.stride[0], *out.stride[2:]),
        *(number for name in ("stride", "padding", "dilation") for number in params[name]),
    )
    sizes, make = struct.pack(f"{len(numbers)}q", *numbers), fresh(out.shape, out.stride, out.dtype)
    return lambda grad, x: _native.depthwise_weight(sizes, make(), grad, x)


def backward(params: Mapping[str, Any], grad: Spec, x: Spec, outputs: Sequence[Spec]) -> list[Candidate]:
    """(grad, x, w) -> (x gradient, w gradient, bias gradient), None where the mask is False; that of w is wanted.

    In channels-last memory nothing else is as fast, so nothing is timed. From another order one of the two gradients is
    computed in it, or both, or none.
    """
    geometry = tuple(params[name] for name in ("stride", "padding", "dilation"))
    geometry = (*geometry, False, params["output_padding"], params["groups"])
    mask, results = list(params["mask"]), iter(outputs)
    by_x, by_w = next(results) if mask[0] else None, next(results)
    mixed = grad.stride[1] != 1 or x.stride[1] != 1
    by_weight = weight_gradient(params, last(grad), last(x), by_w) if mixed else weight_gradient(params, grad, x, by_w)

    def others(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        dx = BACKWARD(grad, x, w, None, *geometry, [True, False, False])[0] if mask[0] else None
        return dx, grad.sum((0, 2, 3)) if mask[2] else None

    def depthwise(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if mixed:
            dw = by_weight(grad.contiguous(memory_format=LAST), x.contiguous(memory_format=LAST))
        else:
            dw = by_weight(grad, x)
        dx, db = others(grad, x, w)
        return dx, dw, db

    if not mixed:
        return [Candidate("depthwise", depthwise, certain=True)]

    def aten(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = BACKWARD(grad, x, w, params["bias_shape"], *geometry, mask)
        return tuple(made if wanted else None for made, wanted in zip(found, mask, strict=True))

    def channels_last(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad, x = grad.contiguous(memory_format=LAST), x.contiguous(memory_format=LAST)
        dw, (dx, db) = by_weight(grad, x), others(grad, x, w)
        return dx if dx is None or by_x is None or by_x.stride[1] == 1 else dx.contiguous(), dw, db

    found = [Candidate("depthwise", depthwise)]
    if mask[0]:
        found.append(Candidate("channels_last", channels_last))
    # of one element it may write beyond its memory: see `convolution`
    return found if math.prod(by_w.shape[2:]) == 1 else [Candidate("aten", aten), *found]
