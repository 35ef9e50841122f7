"""Convolution and its gradients: by ATen in given strides or through channels-last memory, or as matrix products.

On a GPU ATen computes them, except depthwise convolutions in channels-last memory, for which smelt has kernels.

Measured on a 2-core AMD processor with AVX-512 (torch 2.13, oneDNN 3.12), GFLOP/s forward, plain | channels-last input:
the 7x7 stem of ResNet-50 29 | 338 (142 with converting both ways), 3x3 402 | 445, 1x1 185 to 358 | 327 to 422, and the
native product for 1x1 as fast as for other matrices in both orders. The fastest depends on the shape, so the candidates
are timed. The weight gradient of depthwise ones in channels-last memory, eighteen shapes, microseconds, native |
oneDNN: 78 | 93 (2x1024x14x14, 3x3) to 79 | 9,189 (4x768x7x7, 7x7), and the native one was faster for all shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from smelt.runtime.library import depthwise, depthwise_cpu, im2col, pointwise_convolution
from smelt.runtime.library.externs import Candidate, Spec, register

Call = Callable[..., Any]


def _geometry(p: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return tuple(list(p[name]) if isinstance(p[name], tuple) else p[name] for name in names)


@register("convolution", on_device=True, measured=True)
def convolution(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for (x, w, bias or None) -> result; see the prim of the same name."""
    geometry = _geometry(params)

    def aten(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.convolution(x, w, bias, *geometry)

    x, w = inputs[:2]
    assert x is not None and w is not None
    has_bias, on_cpu = len(inputs) > 2 and inputs[2] is not None, params.get("device") is None
    if not on_cpu and depthwise.fits(params, x, w, outputs[0]):
        own = depthwise.forward(params, x, w, outputs[0], has_bias)
        return [own, Candidate("aten", aten)] if params.get("measured") else [own]
    found: list[Candidate | None] = [Candidate("aten", aten)]
    last = _channels_last_format(x)
    if last is not None and not x.channels_last:

        def channels_last(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return torch.convolution(x.contiguous(memory_format=last), w, bias, *geometry)

        found.append(Candidate("channels_last", _laid_out(channels_last, outputs[0])))
    if on_cpu and pointwise_convolution.fits(params, w, x, outputs[0]):
        found.append(pointwise_convolution.forward(x, w, outputs[0], has_bias))
    if on_cpu and im2col.fits(params, x, w, outputs[0]):
        found.append(im2col.forward(x, w, outputs[0], has_bias))
    return [candidate for candidate in found if candidate is not None]


def _with_library(own: list[Candidate], library: Candidate, params: Mapping[str, Any]) -> list[Candidate]:
    """Returns the candidates with the library's: first on the CPU; on a GPU last, and only if candidates are
    measured.
    """
    if params.get("device") is None:
        return [library, *own]
    return [*own, library] if params.get("measured") else own


@register("convolution_backward", on_device=True, measured=True)
def convolution_backward(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for (grad, x, w) -> (x gradient, w gradient, bias gradient), None where the mask
    is False.
    """
    geometry, bias_shape, mask = _geometry(params), params["bias_shape"], list(params["mask"])
    sizes = None if bias_shape is None else list(bias_shape)
    grad, x, w = inputs[:3]
    assert grad is not None and x is not None and w is not None
    overruns, on_cpu = mask[1] and _overruns(params, x, w), params.get("device") is None
    op = _plain_on_the_cpu if overruns else torch.ops.aten.convolution_backward.default

    def aten(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return _masked(op(grad, x, w, sizes, *geometry, mask), mask)

    library = Candidate("aten", aten)
    own = _depthwise_gradients(params, grad, x, w, outputs)
    if own:
        return _with_library(own, library, params)
    found: list[Candidate | None] = [library]
    both = all(mask[:2])
    if both:
        found.append(Candidate("split", _split(op, sizes, geometry, mask)))
    if not overruns:
        found.append(
            _in_channels_last(_split(op, sizes, geometry, mask, _relabelled) if both else aten, grad, x, outputs)
        )
    if on_cpu:
        found += _own_gradients(params, grad, x, w, mask, outputs)
    return [candidate for candidate in found if candidate is not None]


def _depthwise_gradients(
    params: Mapping[str, Any], grad: Spec, x: Spec, w: Spec, outputs: list[Spec]
) -> list[Candidate]:
    """Returns smelt's kernels for the gradients of depthwise convolutions; empty if they do not apply."""
    if params.get("device") is not None:
        return [depthwise.backward(params, grad, x, w, outputs)] if depthwise.fits(params, x, w, grad) else []
    if params["mask"][1] and depthwise_cpu.fits(params, grad, x, w):
        return depthwise_cpu.backward(params, grad, x, outputs)
    return []


def _in_channels_last(run: Callable[..., Any], grad: Spec, x: Spec, outputs: list[Spec]) -> Candidate | None:
    """Returns a candidate that calls `run` on images converted to channels-last memory; None if they are channels-last
    already, or cannot be converted.
    """
    last = _channels_last_format(x)
    if last is None or x.channels_last or grad.channels_last:
        return None

    def channels_last(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return run(grad.contiguous(memory_format=last), x.contiguous(memory_format=last), w)

    return Candidate("channels_last", _each_laid_out(channels_last, outputs))


def _own_gradients(
    params: Mapping[str, Any], grad: Spec, x: Spec, w: Spec, mask: list[bool], outputs: list[Spec]
) -> Iterator[Candidate | None]:
    """Returns the candidates that compute the gradients on a CPU by matrix products."""
    if pointwise_convolution.fits(params, w, x, grad):
        yield pointwise_convolution.backward(grad, x, w, mask, outputs)
    if im2col.fits(params, x, w, grad):
        yield im2col.backward(grad, x, w, mask, outputs)


FEW_CHANNELS = 16
"""Number of channels below which `_overruns` assumes a failure: seen below 8; the kernel uses vectors of up to 16."""


def _overruns(params: Mapping[str, Any], x: Spec, w: Spec) -> bool:
    """Whether oneDNN's weight gradient in channels-last memory writes out of bounds (torch 2.13, 2.15).

    It does so for few channels and a window of one element with a stride above 1 that leaves the end of the image
    unread; eager then crashes, for example in `torch.convolution(x, w, None, [2, 2], ...)` of 2x3x64x64 with 64x3x1x1.
    """
    if params["transposed"] or any(size != 1 for size in w.shape[2:]) or x.shape[1] >= FEW_CHANNELS:
        return False
    moves = zip(x.shape[2:], params["stride"], params["padding"], strict=True)
    return any(stride > 1 and (size + 2 * pad - 1) % stride for size, stride, pad in moves)


def _plain_on_the_cpu(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *how: Any) -> Any:
    """Compute `convolution_backward` of images and weights that are not in channels-last memory."""
    if x.device.type == "cpu":
        x, w = x.contiguous(), w.contiguous()
    return torch.ops.aten.convolution_backward.default(grad, x, w, *how)


def _masked(gradients: Any, mask: list[bool]) -> tuple[torch.Tensor | None, ...]:
    """Returns only the requested gradients: some kernels return the weight's whenever they compute the bias's."""
    return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, mask, strict=True))


def _split(
    op: Call,
    sizes: list[int] | None,
    geometry: tuple[Any, ...],
    mask: list[bool],
    stand_in: Callable[[torch.Tensor], torch.Tensor] = lambda w: w,
) -> Call:
    """Compute the input gradient and the parameter gradients by separate calls; the latter do not read the weight's
    values.
    """
    rest = [False, True, mask[2]]

    def call(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        data = op(grad, x, w, sizes, *geometry, [True, False, False])[0]
        return (data, *_masked(op(grad, x, stand_in(w), sizes, *geometry, rest), rest)[1:])

    return call


def _channels_last_format(x: Spec) -> torch.memory_format | None:
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(x.shape))


def _relabelled(w: torch.Tensor) -> torch.Tensor:
    """Returns the weight relabelled to the images' layout, without a copy: only its shape and layout are used, not its
    values.
    """
    if not w.is_contiguous():
        return w
    return w.as_strided(w.shape, Spec.of_channels_last(tuple(w.shape), w.dtype).stride, w.storage_offset())


def _laid_out(call: Call, out: Spec) -> Call:
    """Returns `call` with its result copied to the strides that consumers expect, so that timing includes the copy."""
    return call if out.channels_last else lambda *tensors: call(*tensors).contiguous()


def _each_laid_out(call: Call, outputs: list[Spec]) -> Call:
    if any(len(out.shape) > 1 and out.channels_last for out in outputs):
        return call
    return lambda *tensors: tuple(None if t is None else t.contiguous() for t in call(*tensors))
