"""The gradient of depthwise convolutions by their weight on the CPU: native/depthwise.c.

oneDNN's, for images in channels-last memory, takes up to 256 weights of scratch for each weight: 12 MiB a call where
the whole training step of a small model takes 40. The native one takes next to none and is faster: see `convolution`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.externs import Spec
from smelt.runtime.memory import fresh

MOST_TAPS = 121
"""Elements of a window, whose sums each thread keeps on its stack."""


def fits(params: Mapping[str, Any], grad: Spec, x: Spec, w: Spec) -> bool:
    """Whether it is one channel a group, float32, of images in channels-last memory."""
    if params["transposed"] or len(x.shape) != 4 or w.shape[:2] != (x.shape[1], 1) or params["groups"] != x.shape[1]:
        return False
    if any(spec.dtype is not torch.float32 or 0 in spec.shape for spec in (grad, x, w)):
        return False
    return math.prod(w.shape[2:]) <= MOST_TAPS and grad.stride[1] == x.stride[1] == 1


def weight_gradient(params: Mapping[str, Any], grad: Spec, x: Spec, out: Spec) -> Callable[..., torch.Tensor]:
    """(grad, x) -> the gradient by the weight."""
    numbers = (
        *x.shape[:2],
        *(*grad.shape[2:], grad.stride[0], *grad.stride[2:]),
        *(*x.shape[2:], x.stride[0], *x.stride[2:]),
        *(*out.shape[2:], out.stride[0], *out.stride[2:]),
        *(number for name in ("stride", "padding", "dilation") for number in params[name]),
    )
    sizes, make = struct.pack(f"{len(numbers)}q", *numbers), fresh(out.shape, out.stride, out.dtype)
    return lambda grad, x: _native.depthwise_weight(sizes, make(), grad, x)
