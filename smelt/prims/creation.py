"""Primitives without tensor operands: constants, ranges and random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.random_bits import uniform
from smelt.prims.table import Facts, Kind, Number, Shape, make, prim, require


@prim(
    "full",
    kind=Kind.CREATION,
    reference=lambda shape, value, dtype, device: torch.full(shape, value, dtype=dtype, device=device),
)
def full(shape: Shape, value: Number, dtype: torch.dtype, device: torch.device) -> TensorMeta:
    """A tensor filled with value."""
    return make(shape, dtype, device)


def _iota(length: int, start: Number, step: Number, dtype: torch.dtype, device: torch.device) -> Tensor:
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return (torch.arange(length, dtype=wide, device=device) * step + start).to(dtype)


@prim("iota", kind=Kind.CREATION, reference=_iota)
def iota(length: int, start: Number, step: Number, dtype: torch.dtype, device: torch.device) -> TensorMeta:
    """start + i * step for i < length (integers in int64, floats in float64, then rounded to dtype)."""
    return make((length,), dtype, device)


@prim("random", kind=Kind.RANDOM, reference=uniform, facts=Facts(cost=12))
def random(seed: TensorMeta, stream: int, shape: Shape) -> TensorMeta:
    """Uniform float32 in [0, 1), a pure function of (seed, stream, row-major index): see random_bits.

    seed is a 0-d int64 tensor; each random node of one graph has a different stream.
    """
    require(not seed.shape and seed.dtype is torch.int64, f"prim random: the seed is {seed.dtype} {seed.shape}")
    return make(shape, torch.float32, seed.device)
