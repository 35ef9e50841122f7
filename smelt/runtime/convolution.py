"""Convolution and its gradients: ATen as the strides come, or through channels-last memory; timed per shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.runtime.externs import Candidate, Spec, register

Call = Callable[..., Any]


def _geometry(p: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return tuple(list(p[name]) if isinstance(p[name], tuple) else p[name] for name in names)


@register("convolution")
def convolution(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """(x, w, bias or None) -> result; see the prim of the same name."""
    geometry = _geometry(params)

    def aten(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.convolution(x, w, bias, *geometry)

    x = inputs[0]
    assert x is not None
    last = _channels_last_format(x)
    if last is None or _is_last(x):
        return [Candidate("aten", aten)]

    def channels_last(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.convolution(x.contiguous(memory_format=last), w, bias, *geometry)

    return [Candidate("aten", aten), Candidate("channels_last", _laid_out(channels_last, outputs))]


@register("convolution_backward")
def convolution_backward(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """(grad, x, w) -> (x gradient, w gradient, bias gradient), None where the mask is False."""
    geometry, bias_shape, mask = _geometry(params), params["bias_shape"], list(params["mask"])
    sizes = None if bias_shape is None else list(bias_shape)
    op = torch.ops.aten.convolution_backward.default

    def aten(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return op(grad, x, w, sizes, *geometry, mask)

    found = [Candidate("aten", aten)]
    if mask[0] and mask[1]:
        found.append(Candidate("split", _split(op, sizes, geometry, mask)))
    return found


def _split(op: Call, sizes: list[int] | None, geometry: tuple[Any, ...], mask: list[bool]) -> Call:
    """Input gradient and parameter gradients by separate calls."""

    def call(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        data = op(grad, x, w, sizes, *geometry, [True, False, False])[0]
        return (data, *op(grad, x, w, sizes, *geometry, [False, True, mask[2]])[1:])

    return call


def _channels_last_format(x: Spec) -> torch.memory_format | None:
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(x.shape))


def _is_last(x: Spec) -> bool:
    return x.stride[1] == 1 and x.shape[1] > 1


def _laid_out(call: Call, outputs: list[Spec]) -> Call:
    """`call`, its result copied to the strides its consumers expect: timed as part of the candidate."""
    if _is_last(outputs[0]):
        return call
    return lambda *tensors: call(*tensors).contiguous()
