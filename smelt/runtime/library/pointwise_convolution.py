"""Convolutions with a kernel of one element, which are matrix products, by smelt's kernel in any memory order.

With N images of C channels and P = height * width pixels, per image: result[K, P] = w[K, C] x[C, P]. When both sides
let images and pixels merge into one dimension (channels last, or N = 1) it is one product over N * P pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.library.externs import Candidate, Spec
from smelt.runtime.memory import fresh


@dataclass(frozen=True)
class _Images:
    """An activation as images x channels x pixels: its sizes, then its strides, in elements."""

    count: int
    channels: int
    pixels: int
    image: int
    channel: int
    pixel: int

    @property
    def merged(self) -> bool:
        return self.count == 1 or self.image == self.pixels * self.pixel


def _images(spec: Spec) -> _Images | None:
    """Returns the activation of a spec; None if the pixels of an image are not evenly spaced."""
    space, steps = spec.shape[2:], spec.stride[2:]
    pixel, reach = None, 1
    for size, step in reversed(list(zip(space, steps, strict=True))):
        if size == 1:
            continue
        pixel = step if pixel is None else pixel
        if step != pixel * reach:
            return None
        reach *= size
    return _Images(spec.shape[0], spec.shape[1], math.prod(space), spec.stride[0], spec.stride[1], pixel or 1)


def fits(params: Mapping[str, Any], w: Spec, *others: Spec) -> bool:
    """Whether the convolution is a float32 product, of at least one element, that the kernel can address."""
    plain = not params["transposed"] and params["groups"] == 1 and set(w.shape[2:]) == {1}
    plain = plain and set(params["stride"]) == {1} and set(params["padding"]) == {0}
    specs = (w, *others)
    plain = plain and all(s.dtype is torch.float32 and 0 not in s.shape for s in specs)
    return plain and all(_images(s) is not None for s in others)


def forward(x: Spec, w: Spec, out: Spec, bias: bool) -> Candidate | None:
    """Returns the product for (x, w[, bias]) -> out; None if the bias is not along the product's columns."""
    run = _product(x, (w.stride[1], w.stride[0]), w.shape[0], out)
    if run is None or (bias and not run.bias_along_columns):
        return None
    kernel, swapped, make = run.kernel, run.swapped, fresh(out.shape, out.stride, out.dtype)

    def into(result: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return kernel(result, w, x) if swapped else kernel(result, x, w, bias)

    def call(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return into(make(), x, w, bias)

    return Candidate("own", call, into)


def backward(grad: Spec, x: Spec, w: Spec, mask: list[bool], outputs: list[Spec]) -> Candidate | None:
    """Returns the candidate for the gradients that `mask` asks for, or None."""
    results = iter(outputs)
    steps: list[Callable[..., torch.Tensor] | None] = [None, None, None]
    if mask[0]:
        steps[0] = _input_gradient(grad, w, next(results))
    if mask[1]:
        steps[1] = _weight_gradient(grad, x, next(results))
    if mask[2]:
        dims = [0, *range(2, len(grad.shape))]
        steps[2] = lambda grad, x, w: grad.sum(dims)
    if any(wanted and step is None for wanted, step in zip(mask, steps, strict=True)):
        return None

    def call(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if step is None else step(grad, x, w) for step in steps)

    return Candidate("own", call)


@dataclass(frozen=True)
class _Product:
    kernel: Any
    swapped: bool  # whether the weight is the first factor
    bias_along_columns: bool


def _product(x: Spec, weight: tuple[int, int], channels: int, out: Spec) -> _Product | None:
    """Returns the product of x's channels and a weight with strides `weight` over (channels of x, channels of out), or
    None.
    """
    source, target = _images(x), _images(out)
    if source is None or target is None:
        return None
    inner, columns = source.channels, channels
    if source.merged and target.merged:
        shape = (source.count * source.pixels, inner)
        kernel = _native.Gemm(
            shape, (source.pixel, source.channel), (inner, columns), weight, (target.pixel, target.channel)
        )
        return _Product(kernel, False, True)
    kernel = _native.Gemm(
        (source.count, columns, inner),
        (0, weight[1], weight[0]),
        (source.count, inner, source.pixels),
        (source.image, source.channel, source.pixel),
        (target.image, target.channel, target.pixel),
    )
    return _Product(kernel, True, False)


def _input_gradient(grad: Spec, w: Spec, out: Spec) -> Callable[..., torch.Tensor] | None:
    run = _product(grad, (w.stride[0], w.stride[1]), w.shape[1], out)
    if run is None:
        return None
    kernel, swapped, make = run.kernel, run.swapped, fresh(out.shape, out.stride, out.dtype)

    def call(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return kernel(make(), w, grad) if swapped else kernel(make(), grad, w)

    return call


def _weight_gradient(grad: Spec, x: Spec, out: Spec) -> Callable[..., torch.Tensor] | None:
    """Returns the weight gradient, a sum over pixels and images: one product, or one per image, accumulated. None if
    neither is possible.
    """
    g, source = _images(grad), _images(x)
    if g is None or source is None:
        return None
    images_merged = g.merged and source.merged
    pixels = g.pixels * g.count if images_merged else g.pixels
    dims = ((g.channels, pixels), (g.channel, g.pixel), (pixels, source.channels), (source.pixel, source.channel))
    target = (out.stride[0], out.stride[1])
    first, more = _native.Gemm(*dims, target), _native.Gemm(*dims, target, accumulate=True)
    images, make = 1 if images_merged else g.count, fresh(out.shape, out.stride, out.dtype)

    def call(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result = first(make(), grad, x)
        for i in range(1, images):
            more(result, grad[i], x[i])
        return result

    return call
