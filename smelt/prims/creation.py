"""Tensors from nothing: constants, ranges and random numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smelt.graph.meta import TensorMeta
from smelt.prims.table import Kind, Number, Shape, make, prim, require


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


_MASK = 0xFFFFFFFF


def stream_key(seed: int, stream: int) -> tuple[int, int]:
    """The two 32-bit keys (k0, k1) of one stream: splitmix64 of seed + (stream + 1) * 0x9E3779B97F4A7C15."""
    z = (seed + (stream + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    z ^= z >> 31
    return z & _MASK, z >> 32


def _random(seed: Tensor, stream: int, shape: Shape) -> Tensor:
    k0, k1 = stream_key(int(seed), stream)
    place = torch.arange(math.prod(shape), dtype=torch.int64, device=seed.device)
    x = ((place & _MASK) + k0) & _MASK
    x = ((x ^ (x >> 17)) * 0xED5AD4BB) & _MASK
    x = ((x ^ (x >> 11)) + k1 + (place >> 32)) & _MASK
    x = (x * 0xAC4C1B51) & _MASK
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _MASK
    x = x ^ (x >> 14)
    return ((x >> 8).to(torch.float32) * 2.0**-24).reshape(shape)


@prim("random", kind=Kind.RANDOM, reference=_random)
def random(seed: TensorMeta, stream: int, shape: Shape) -> TensorMeta:
    """Uniform float32 in [0, 1), a pure function of (seed, stream, row-major place).

    The 0-d int64 seed and the stream give two keys (`stream_key`); the place is hashed under them by three
    rounds of 32-bit xor-shift and multiply (the constants of C. Wellons' "triple32"), and the upper 24 bits
    of the result are the number. A tenth of the work of Philox and it vectorises: dropout masks cost
    less to recompute than to store.
    """
    require(not seed.shape and seed.dtype is torch.int64, f"prim random: the seed is {seed.dtype} {seed.shape}")
    return make(shape, torch.float32, seed.device)
