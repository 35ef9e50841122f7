"""Window functions, the frequencies of Fourier transforms and `torch.range`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.dtypes import compute_dtype
from smelt.prims.registry import Lowering, aten, decomposition
from smelt.shapes.size import Size


def _window(shape: Callable[..., Node]) -> Callable[..., Any]:
    """Returns the rule for `window(length, periodic, ...)`. `shape(p, angle, ...)` computes the window from the angle
    at each position, which goes from 0 to 2 pi over the window.
    """

    def rule(p: Lowering, length: int, periodic: bool = True, *options: float, **kwargs: Any) -> Any:
        if isinstance(length, Size) or not p.out.dtype.is_floating_point:
            return NotImplemented
        if length < 2:
            return p.full((length,), 1, p.out.dtype, p.out.device)
        position = p.iota(length, 0, 1, compute_dtype(p.out.dtype), p.out.device)
        angle = p.mul(position, 2 * math.pi / (length if periodic else length - 1))
        return p.convert(shape(p, angle, *options), p.out.dtype)

    return rule


def _raised_cosine(p: Lowering, angle: Node, alpha: float = 0.54, beta: float = 0.46) -> Node:
    return p.sub(alpha, p.mul(p.cos(angle), beta))


def _blackman(p: Lowering, angle: Node) -> Node:
    return p.add(_raised_cosine(p, angle, 0.42, 0.5), p.mul(p.cos(p.mul(angle, 2.0)), 0.08))


def _bartlett(p: Lowering, angle: Node) -> Node:
    return p.sub(1.0, p.abs(p.sub(p.div(angle, math.pi), 1.0)))


for _name, _shape in {
    "hann": lambda p, angle: _raised_cosine(p, angle, 0.5, 0.5),
    "hamming": _raised_cosine,
    "blackman": _blackman,
    "bartlett": _bartlett,
}.items():
    _packet = getattr(aten, f"{_name}_window")
    _overloads = [getattr(_packet, o) for o in _packet.overloads() if not o.endswith("out")]
    decomposition(*_overloads)(_window(_shape))


@decomposition(aten.fft_fftfreq.default)
def frequencies(p: Lowering, n: int, d: float = 1.0, **options: Any) -> Node:
    """Returns multiples of 1 / (n d): first the non-negative frequencies, then the negative ones."""
    position = p.iota(n, 0, 1, torch.int64, p.out.device)
    position = p.where(p.lt(position, (n + 1) // 2), position, p.sub(position, n))
    return p.convert(p.mul(p.convert(position, compute_dtype(p.out.dtype)), 1 / (n * d)), p.out.dtype)


@decomposition(aten.fft_rfftfreq.default)
def positive_frequencies(p: Lowering, n: int, d: float = 1.0, **options: Any) -> Node:
    position = p.iota(n // 2 + 1, 0, 1, compute_dtype(p.out.dtype), p.out.device)
    return p.convert(p.mul(position, 1 / (n * d)), p.out.dtype)


@decomposition(aten.range.default, aten.range.step)
def range_with_end(p: Lowering, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    if not p.out.dtype.is_floating_point or isinstance(p.out.shape[0], Size):
        return NotImplemented
    position = p.iota(p.out.shape[0], 0, 1, compute_dtype(p.out.dtype), p.out.device)
    return p.convert(p.add(p.mul(position, float(step)), float(start)), p.out.dtype)
