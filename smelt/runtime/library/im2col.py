"""Convolutions whose windows neither overlap nor leave gaps, such as patch embeddings, as matrix products.

The image is copied so that each window is one column of numbers, in the order of the weight's memory; the rest is a
convolution with a kernel of one element (`pointwise_convolution`). The copy has the size of the image. oneDNN's weight
gradient takes much more: 18 MiB for the patches of ViT-B, at the end of a backward, when all gradients are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smelt.runtime.library import pointwise_convolution
from smelt.runtime.library.externs import Candidate, Spec, empty_as


def fits(params: Mapping[str, Any], x: Spec, w: Spec, out: Spec) -> bool:
    """Whether the windows of a float32 convolution cover each element of the image once, and the weight is in one of
    two memory orders.
    """
    size = w.shape[2:]
    plain = not params["transposed"] and params["groups"] == 1 and 1 < math.prod(size)
    plain = plain and tuple(params["stride"]) == size and not any(params["padding"])
    plain = plain and all(d == 1 or n == 1 for d, n in zip(params["dilation"], size, strict=True))
    plain = plain and all(s.dtype is torch.float32 and 0 not in s.shape for s in (x, w, out))
    whole = tuple(n * m for n, m in zip(out.shape[2:], size, strict=True))
    return plain and whole == x.shape[2:] and _order(w) is not None


def _order(w: Spec) -> tuple[int, ...] | None:
    """Returns the weight's dimensions after the first in memory order (contiguous or channels-last); None for another
    order.
    """
    dims = tuple(range(1, len(w.shape)))
    for order in (dims, (*dims[1:], 1)):
        reach, fine = 1, True
        for d in reversed(order):
            fine = fine and (w.shape[d] == 1 or w.stride[d] == reach)
            reach *= w.shape[d]
        if fine and (w.shape[0] == 1 or w.stride[0] == reach):
            return order
    return None


@dataclass(frozen=True)
class _Patches:
    """The image x as patches, and the weight w as a kernel of one element for these.

    Attributes:
        spec: shape and strides of the patches: (images, elements of a window, grid ...), with a window's elements
            contiguous.
        weight: spec of the weight as a kernel of one element.
    """

    x: Spec
    w: Spec
    spec: Spec
    weight: Spec

    @staticmethod
    def of(x: Spec, w: Spec) -> _Patches:
        grid = tuple(n // m for n, m in zip(x.shape[2:], w.shape[2:], strict=True))
        elements = math.prod(w.shape[1:])
        spec = Spec.of_channels_last((x.shape[0], elements, *grid), x.dtype)
        ones = (1,) * len(grid)
        return _Patches(x, w, spec, Spec((w.shape[0], elements, *ones), (elements, 1, *ones), w.dtype))

    def windows(self, image: Tensor) -> Tensor:
        """Returns an image like x viewed as (images, grid ..., elements of a window in the order of the weight ...)."""
        batch, channel, *steps = image.stride()
        sizes, order = self.w.shape[2:], _order(self.w)
        assert order is not None
        jumps = (m * step for m, step in zip(sizes, steps, strict=True))
        inner = [(self.w.shape[d], channel if d == 1 else steps[d - 2]) for d in order]
        shape = (self.x.shape[0], *self.spec.shape[2:], *(n for n, _ in inner))
        return image.as_strided(shape, (batch, *jumps, *(step for _, step in inner)), image.storage_offset())

    def elements(self, patches: Tensor) -> Tensor:
        """Returns patches viewed in the shape of `windows`, which is the order of their memory."""
        order = _order(self.w)
        assert order is not None
        lead = (self.spec.shape[0], *self.spec.shape[2:])
        return patches.movedim(1, -1).view(*lead, *(self.w.shape[d] for d in order))

    def gathered(self, image: Tensor) -> Tensor:
        patches = empty_as(self.spec, image.device)
        self.elements(patches).copy_(self.windows(image))
        return patches

    def flat(self, w: Tensor) -> Tensor:
        """Returns a tensor like the weight, viewed as the weight for patches."""
        return w.as_strided(self.weight.shape, self.weight.stride, w.storage_offset())


def forward(x: Spec, w: Spec, out: Spec, bias: bool) -> Candidate | None:
    """Returns the candidate for (x, w[, bias]) -> out, or None."""
    patches = _Patches.of(x, w)
    inside = pointwise_convolution.forward(patches.spec, patches.weight, out, bias)
    after = bias and inside is None
    if after:
        inside = pointwise_convolution.forward(patches.spec, patches.weight, out, False)
    if inside is None or inside.into is None:
        return None
    product = inside.into

    def into(result: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None or after:
            product(result, patches.gathered(x), patches.flat(w))
        else:
            product(result, patches.gathered(x), patches.flat(w), bias)
        return result if bias is None or not after else result.add_(bias.view(-1, *(1,) * (len(out.shape) - 2)))

    def call(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        return into(empty_as(out, x.device), x, w, bias)

    return Candidate("patches", call, into)


def backward(grad: Spec, x: Spec, w: Spec, mask: list[bool], outputs: Sequence[Spec]) -> Candidate | None:
    """Returns the candidate for (grad, x, w) -> the gradients that the mask selects, or None. Windows are in the order
    of the weight gradient.
    """
    results = iter(outputs)
    by_x, by_w, _ = (next(results) if wanted else None for wanted in mask)
    kernel = w if by_w is None else by_w
    if _order(kernel) is None:
        return None
    patches, reordered = _Patches.of(x, kernel), _order(kernel) != _order(w)
    wanted = [spec for spec, asked in ((patches.spec, mask[0]), (patches.weight, mask[1])) if asked]
    inside = pointwise_convolution.backward(grad, patches.spec, patches.weight, mask, wanted)
    if inside is None:
        return None
    products = inside.call

    def call(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        gathered = patches.gathered(x) if mask[1] else x
        w = empty_as(kernel, w.device).copy_(w) if reordered and mask[0] else w
        dx, dw, db = products(grad, gathered, patches.flat(w))
        del gathered
        if by_x is not None:
            image = empty_as(by_x, x.device)
            patches.windows(image).copy_(patches.elements(dx))
            dx = image
        return dx, None if by_w is None else dw.as_strided(by_w.shape, by_w.stride), db

    return Candidate("patches", call)
