"""Concatenations of many small tensors on a CPU: rows are copied by native/concatenate.c.

ATen's kernel checks each tensor several times, which takes 0.1 us per tensor, before it copies anything.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.library.externs import Candidate, Spec, register
from smelt.runtime.library.fallback import Slot, overload
from smelt.runtime.memory import fresh
from smelt.runtime.tuned import LIBRARY


@register("aten.cat.default")
def cat(params: Mapping[str, Any], inputs: list[Spec | None], outputs: list[Spec]) -> list[Candidate]:
    """Returns the candidates for (*tensors) -> their concatenation along a dimension; `params["args"]` = (slots,
    dimension).

    In calls of the user's program with types that generated kernels do not support, the dimension may be absent or a
    keyword.
    """
    candidates = overload({**params, "overload": "aten.cat.default"}, inputs, outputs)
    (out,), (slots, *rest) = outputs, params["args"]
    dim = rest[0] if rest else params.get("kwargs", {}).get("dim", 0)
    operands = [each for each in inputs if each is not None]
    if [*slots] != [Slot(i) for i in range(len(operands))] or len(operands) != len(inputs):
        return candidates
    if not all(_lies_in_rows(each) and each.dtype is out.dtype for each in (*operands, out)):
        return candidates
    if math.prod(out.shape) * out.dtype.itemsize > LIBRARY.serial_copy_bytes:
        return candidates
    return [_copies(dim, operands, out), *candidates]


def _lies_in_rows(spec: Spec) -> bool:
    steps = Spec.in_rows(spec.shape, spec.dtype).stride
    return 0 in spec.shape or all(n == 1 or a == b for n, a, b in zip(spec.shape, spec.stride, steps, strict=True))


def _copies(dim: int, operands: list[Spec], out: Spec) -> Candidate:
    rows = math.prod(out.shape[:dim])
    widths = [
        0 if 0 in operand.shape else math.prod(operand.shape[dim:]) * operand.dtype.itemsize for operand in operands
    ]
    sizes, make = struct.pack(f"{len(operands) + 1}q", rows, *widths), fresh(out.shape, out.stride, out.dtype)
    copy = _native.concatenate

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return copy(sizes, make(), tensors)

    def into(result: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return copy(sizes, result, tensors)

    return Candidate("copies", call, into, certain=True)
