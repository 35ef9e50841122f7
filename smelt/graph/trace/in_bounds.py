"""Decides whether `as_strided` reads only elements of a tensor: graphs have no access to other memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from smelt.graph.ir.meta import TensorMeta, is_dense, may_overlap, reach
from smelt.shapes.size import known_at_most


def lies_within(shape: Sequence[int], stride: Sequence[int], offset: int, val: TensorMeta) -> bool:
    """Whether all elements of a view are certainly among those of a tensor.

    The result is False if elements of the tensor may share memory, except along dimensions of stride 0.
    """
    if is_dense(val.shape, val.stride):
        return offset >= 0 and known_at_most(reach(shape, stride, offset), val.numel)
    sizes = (*shape, *stride, offset, *val.shape, *val.stride)
    if not all(type(n) is int for n in sizes) or val.numel > _MAX_COMPARED_ELEMENTS:
        return False
    once = [1 if step == 0 else n for n, step in zip(val.shape, val.stride, strict=True)]
    if may_overlap(once, val.stride):
        return False
    return bool(numpy.isin(distinct_offsets(shape, stride, offset), distinct_offsets(val.shape, val.stride, 0)).all())


def distinct_offsets(shape: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """Returns the offsets of the elements in memory; elements that stride 0 repeats are listed once."""
    return element_offsets([1 if step == 0 else n for n, step in zip(shape, stride, strict=True)], stride, offset)


def element_offsets(shape: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """Returns the offset of each element in memory, in row-major order."""
    found = numpy.array([offset])
    for size, step in zip(shape, stride, strict=True):
        found = (found[:, None] + numpy.arange(size) * step).reshape(-1)
    return found


_MAX_COMPARED_ELEMENTS = 1 << 20
"""Maximum number of elements of a tensor with gaps whose offsets are compared one by one."""
