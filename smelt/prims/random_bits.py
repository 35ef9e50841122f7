"""The counter-based random generator of the `random` prim: its eager reference, bit for bit as in kernels.

A value depends only on (seed, stream, linear index), so it does not depend on how kernels are fused, split over threads
or recomputed in the backward. Per element: two rounds of a 32-bit xor-shift-multiply mix with a key word added before
each; the two key words come from one SplitMix64 step over seed and stream (Steele, Lea, Flood 2014). The multipliers of
the 32-bit mix are those published by Wellons, "Prospecting for hash functions" (2018). All steps are additions,
multiplications, shifts and xors of 32-bit lanes: eight or sixteen elements go through one vector register.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

GOLDEN = 0x9E3779B97F4A7C15
SPLIT_1 = 0xBF58476D1CE4E5B9
SPLIT_2 = 0x94D049BB133111EB
MIX_1 = 0x7FEB352D
MIX_2 = 0x846CA68B
HIGH = 0x9E3779B1
LOW_WORD = 0xFFFFFFFF


def uniform(seed: torch.Tensor, stream: int, shape: Sequence[int]) -> torch.Tensor:
    """Returns float32 values of `shape` in [0, 1), which are multiples of 2**-24.

    Args:
        seed: int64 tensor of no dimensions.
        stream: a number that is different for each random node of one program.
        shape: the result's shape; element i of its row-major order gets counter i.
    """
    bits = random_words(seed, stream, math.prod(shape))
    return ((bits >> 8).to(torch.float32) * 2.0**-24).reshape(tuple(shape))


def random_words(seed: torch.Tensor, stream: int, count: int) -> torch.Tensor:
    """Returns `count` 32-bit words for counters 0 .. count-1, as int64."""
    key = _mixed_key(seed.to(torch.int64), stream)
    index = torch.arange(count, dtype=torch.int64, device=seed.device)
    word = (index + (index >> 32) * HIGH + key) & LOW_WORD
    word = _mix(word)
    word = (word + _shift(key, 32)) & LOW_WORD
    return _mix(word)


def _mixed_key(seed: torch.Tensor, stream: int) -> torch.Tensor:
    z = seed + _signed(GOLDEN * (stream + 1))
    z = (z ^ _shift(z, 30)) * _signed(SPLIT_1)
    z = (z ^ _shift(z, 27)) * _signed(SPLIT_2)
    return z ^ _shift(z, 31)


def _mix(word: torch.Tensor) -> torch.Tensor:
    word = ((word ^ (word >> 16)) * MIX_1) & LOW_WORD
    word = ((word ^ (word >> 15)) * MIX_2) & LOW_WORD
    return word ^ (word >> 16)


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift of 64-bit words."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    """Returns the int64 with the same low 64 bits."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x
