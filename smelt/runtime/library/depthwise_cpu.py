"""The gradients of depthwise convolutions on the CPU: the weight's by depthwise.c, the others by ATen.

oneDNN's weight gradient, for images in channels-last memory, needs scratch memory of up to 256 times the weight: 12 MiB
a call, where the whole training step of a small model takes 40. The native kernel needs almost no scratch memory and is
faster (see `convolution`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.library.externs import Candidate, Spec
from smelt.runtime.memory import fresh

MAX_TAPS = 121
"""Maximum number of elements of a window: each thread has one sum per element on its stack."""


def fits(params: Mapping[str, Any], grad: Spec, x: Spec, w: Spec) -> bool:
    """Whether a convolution is depthwise, of float32, with several channels and a window that is not too large."""
    channels = x.shape[1]
    if params["transposed"] or len(x.shape) != 4 or channels == 1 or params["groups"] != channels:
        return False
    if w.shape[:2] != (channels, 1):
        return False
    if any(spec.dtype is not torch.float32 or 0 in spec.shape for spec in (grad, x, w)):
        return False
    return math.prod(w.shape[2:]) <= MAX_TAPS


def last(image: Spec) -> Spec:
    """Returns the layout of the image in channels-last memory."""
    _, channels, height, width = image.shape
    return Spec(image.shape, (height * width * channels, 1, width * channels, channels), image.dtype)


def weight_gradient(params: Mapping[str, Any], grad: Spec, x: Spec, out: Spec) -> Callable[..., torch.Tensor]:
    """Returns a function (grad, x) -> the weight gradient, for images in channels-last memory."""
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
    """Returns the candidates for (grad, x, w) -> (x gradient, w gradient, bias gradient), None where the mask is False;
    the mask must be True for w.

    In channels-last memory no alternative is as fast. From other layouts, the weight gradient is computed on converted
    images; a second candidate also computes the gradient of x on these.
    """
    geometry = *(params[name] for name in ("stride", "padding", "dilation")), False, params["output_padding"]
    mask, results = params["mask"], iter(outputs)
    by_x, by_w = next(results) if mask[0] else None, next(results)
    ready = grad.channels_last and x.channels_last
    by_weight = weight_gradient(params, grad, x, by_w) if ready else weight_gradient(params, last(grad), last(x), by_w)
    op = torch.ops.aten.convolution_backward.default

    def depthwise(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dw = by_weight(grad, x) if ready else by_weight(_moved(grad), _moved(x))
        dx = op(grad, x, w, None, *geometry, params["groups"], [True, False, False])[0] if mask[0] else None
        return dx, dw, grad.sum((0, 2, 3)) if mask[2] else None

    found = [Candidate("depthwise", depthwise, certain=ready)]
    if by_x is not None and not ready:
        plain = not by_x.channels_last

        def channels_last(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            dx, dw, db = depthwise(_moved(grad), _moved(x), w)
            return dx.contiguous() if plain and dx is not None else dx, dw, db

        found.append(Candidate("channels_last", channels_last))
    return found


def _moved(image: torch.Tensor) -> torch.Tensor:
    return image.contiguous(memory_format=torch.channels_last)
