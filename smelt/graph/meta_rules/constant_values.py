"""Trace tensors whose elements are known: `torch.tensor(3)`, and results that are computed only from such tensors.

Programs keep sizes and scales in small tensors and read them back as numbers (`scale = torch.tensor(width).sqrt()`,
`x[: span.item()]`). Those values depend only on constants of the program and guarded numbers, so a trace may read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.schema import OpInfo
from smelt.graph.ir.storage_view import Layout, StorageView, ViewedTensor
from smelt.graph.ir.symint import has_size
from smelt.shapes.real import Real
from smelt.shapes.size import Size

MAX_TRACKED_ELEMENTS = 64
"""Maximum number of elements of a tensor whose values are tracked: sizes and scales are small, and cheap to compute."""

_UNINITIALISED = frozenset(
    f"aten::{name}" for name in "empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split()
)
"""Operators whose results are uninitialised."""


_FILLED = frozenset(
    getattr(operator, overload)
    for name in "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor".split()
    for operator in [getattr(torch.ops.aten, name)]
    for overload in operator.overloads()
)
"""Operators whose results contain a single value."""


def known_value(tensor: ViewedTensor) -> torch.Tensor | None:
    """Returns a real tensor with the elements of a trace tensor, or None if they are not known. It must not be written
    to.
    """
    storage = tensor.storage_view.storage
    constant = storage.constant
    if constant is None or storage.version > 0:
        return None
    return _value_of_view(tensor.storage_view, constant)


def _value_of_view(view: StorageView, constant: torch.Tensor) -> torch.Tensor:
    """Returns the real tensor of a view, whose root is `constant`."""
    if view.parent is None:
        return constant
    assert view.step is not None
    return view.step(_value_of_view(view.parent, constant)).resolve_conj().resolve_neg()


def remember(tensor: ViewedTensor, value: torch.Tensor) -> None:
    """Record that the fresh `tensor` has the elements of `value`, which must not be written to afterwards."""
    if value.numel() <= MAX_TRACKED_ELEMENTS:
        tensor.storage_view.storage.constant = value


def forget(written: Any) -> None:
    """Stop tracking the values of a written tensor, or of a list of them."""
    if isinstance(written, ViewedTensor):
        written.storage_view.storage.constant, written.storage_view.storage.filled = None, False
    elif isinstance(written, (list, tuple)):
        for each in written:
            forget(each)


def follow(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Compute the result of a pure operator when the values of all its operands are known."""
    if not isinstance(out, ViewedTensor) or info.random:
        return
    layout: Layout = out.storage_view.layout
    out.storage_view.storage.filled = func in _FILLED or _keeps_one_value(func, args)
    if (
        layout.symbolic
        or math.prod(layout.val.shape) > MAX_TRACKED_ELEMENTS
        or layout.val.device.type != "cpu"
        or schema_of(func).name in _UNINITIALISED
    ):
        return
    try:
        positional, named = _real(args), {name: _real(value) for name, value in kwargs.items()}
    except _UnknownError:
        return
    if has_size((*positional, *named.values())):
        return
    value = func(*positional, **named)
    if value._is_zerotensor():  # a zero tensor has no memory, which some kernels would read
        value = torch.zeros(value.shape, dtype=value.dtype)
    if tuple(value.shape) == layout.val.shape and value.dtype is layout.val.dtype:
        out.storage_view.storage.constant = value


def _keeps_one_value(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether all elements of the result are equal because all elements of each operand are equal."""
    tensors = [a for a in args if isinstance(a, ViewedTensor)]
    if not tensors or not all(a.storage_view.storage.filled or not a.storage_view.layout.val.shape for a in tensors):
        return False
    if any(isinstance(a, (list, tuple)) for a in args):
        return False
    return torch.Tag.pointwise in func.tags or func is torch.ops.aten._to_copy.default


class _UnknownError(Exception):
    """Raised when the values of an operand are not known."""


def _real(value: Any) -> Any:
    if isinstance(value, ViewedTensor):
        found = known_value(value)
        if found is None:
            raise _UnknownError
        return found
    if isinstance(value, (list, tuple)):
        return type(value)(map(_real, value))
    if isinstance(value, (Size, Real)):
        raise _UnknownError
    return value
