"""Finds tensors that overlap in memory, also of different storages, and the tensor that covers the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.ir.meta import extent, is_dense
from smelt.graph.trace.trace import TraceTensor


def overlapping(examples: Sequence[torch.Tensor]) -> list[list[int]]:
    """Returns groups of indices of different tensors that overlap, directly or through others."""
    by_memory: dict[Any, list[int]] = {}
    for i, example in enumerate(examples):
        by_memory.setdefault(_memory_of(example), []).append(i)
    groups = []
    for indices in by_memory.values():
        group: list[int] = []
        end = 0
        for i in sorted(indices, key=lambda i: _span(examples[i])):
            start, stop = _span(examples[i])
            if group and start >= end:
                groups.append(group)
                group = []
            group.append(i)
            end = max(end, stop)
        groups.append(group)
    return [group for group in groups if len({id(examples[i]) for i in group}) > 1]


def cover_of(group: Sequence[torch.Tensor]) -> int | None:
    """Returns the index of a dense tensor of which the others, of the same dtype, are views; None if no tensor covers
    them.
    """
    spans = [_span(tensor) for tensor in group]
    widest = (min(s for s, _ in spans), max(e for _, e in spans))
    size = group[0].dtype.itemsize
    if any(t.dtype != group[0].dtype for t in group) or any((s - widest[0]) % size for s, _ in spans):
        return None
    covering = (i for i, t in enumerate(group) if spans[i] == widest and is_dense(tuple(t.shape), tuple(t.stride())))
    return next(covering, None)


def address(tensor: torch.Tensor) -> int:
    """Returns the address of the first element; for a trace tensor relative to the beginning of its storage."""
    if type(tensor) is TraceTensor or not tensor.numel():
        return int(tensor.storage_offset()) * tensor.dtype.itemsize
    return tensor.data_ptr()


def _memory_of(tensor: torch.Tensor) -> Any:
    """Returns the address space: a device, also between storages (NumPy and DLPack make several of one memory), or a
    trace storage.
    """
    if type(tensor) is TraceTensor:
        return id(tensor.storage_view.storage)
    return tensor.device if tensor.numel() else id(tensor)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the addresses of the first byte and of the byte after the last."""
    start = address(tensor)
    return start, start + extent(tuple(tensor.shape), tuple(tensor.stride())) * tensor.dtype.itemsize
