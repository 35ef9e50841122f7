"""Finds the layouts of an operator's results by running its kernel once on tensors of ones.

It is used for CPU operators without a metadata rule, and for those whose rule gives strides that differ from the
kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import extent
from smelt.graph.ir.storage_view import Layout, ViewedTensor

MAX_PROBE_ELEMENTS = 1 << 22
"""Maximum number of elements of all arguments together; with more, the kernel is not run."""

_VALUES_MATTER = (
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
)


def probe(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the operator's result for arguments with these layouts; None if it must not or cannot be run.

    Trace tensors among the arguments have static sizes and are on the CPU. Operators of other libraries are never run:
    they may have side effects.
    """
    if func.namespace != "aten" or any(tag in func.tags for tag in _VALUES_MATTER):
        return None
    left = MAX_PROBE_ELEMENTS

    def real(value: Any) -> Any:
        nonlocal left
        if isinstance(value, ViewedTensor):
            layout = value.storage_view.layout
            left -= layout.offset + extent(layout.val.shape, layout.val.stride)
            return _ones(layout) if left >= 0 else None
        return type(value)(map(real, value)) if isinstance(value, (list, tuple)) else value

    positional, named = [real(a) for a in args], {k: real(v) for k, v in kwargs.items()}
    if left < 0:
        return None
    try:
        with torch.no_grad():
            return func(*positional, **named)
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        return None


def _ones(layout: Layout) -> torch.Tensor:
    """Returns ones; zeros for indices, since zero is always a valid index."""
    val = layout.val
    count = layout.offset + extent(val.shape, val.stride)
    value = 1 if val.dtype.is_floating_point or val.dtype.is_complex else 0
    return torch.full((count,), value, dtype=val.dtype).as_strided(val.shape, val.stride, layout.offset)
