"""Layouts of results, for metadata rules: fresh ones and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta, channels_last_stride, contiguous_stride, is_channels_last, same_steps
from smelt.graph.ir.storage_view import Layout, layout_for
from smelt.graph.meta_rules.elementwise import dense_stride
from smelt.shapes.size import IntLike, simplified

Rule = Callable[..., Any]
"""Function `rule(func, args, kwargs)` that returns layouts, or None for an unusual case."""


def layout(of: Any) -> Layout:
    """Returns the layout of a trace tensor."""
    return of.storage_view.layout


def val_of(of: Any) -> TensorMeta:
    """Returns the metadata of a trace tensor, with its sizes simplified by the present assumptions."""
    val = layout(of).val
    return replace(val, shape=simplified(val.shape), stride=simplified(val.stride)) if val.symbolic else val


def moved(of: Any, shape: Sequence[IntLike], stride: Sequence[IntLike], offset: IntLike | None = None) -> Layout:
    """Returns the layout of a view of the tensor."""
    own = layout(of)
    at = own.offset if offset is None else offset
    return layout_for(tuple(shape), own.val.dtype, tuple(stride), own.val.device, at)  # type: ignore[arg-type]


def fresh(like: TensorMeta, shape: Sequence[IntLike], dtype: torch.dtype | None = None, stride: Any = None) -> Layout:
    """Returns a layout of new memory on the device of `like`; row-major by default."""
    shape = tuple(shape)
    return layout_for(shape, dtype or like.dtype, tuple(stride or contiguous_stride(shape)), like.device)  # type: ignore[arg-type]


def as_before(val: TensorMeta, dtype: torch.dtype | None = None) -> Layout:
    """Returns the layout of a fresh tensor in the dense order of dimensions of `val` (`preserve_format`)."""
    return fresh(val, val.shape, dtype, dense_stride(val))


def in_format(val: TensorMeta, shape: Sequence[IntLike], dtype: torch.dtype | None = None) -> Layout:
    """Returns the layout of a fresh batch of images: channels last if `val` is, else row-major."""
    last = is_channels_last(val.shape, val.stride)
    return fresh(val, shape, dtype, channels_last_stride(shape) if last else None)  # type: ignore[arg-type]


def in_format_of_volume(val: TensorMeta, shape: Sequence[IntLike], dtype: torch.dtype | None = None) -> Layout:
    """Returns the layout of a fresh volume without a batch: channels last if `val` is dense in that order and not
    row-major as well, else row-major.
    """
    last = same_steps(val.shape, val.stride, channels_last_stride((1, *val.shape))[1:])
    if not last or same_steps(val.shape, val.stride, contiguous_stride(val.shape)):
        return fresh(val, shape, dtype)
    return fresh(val, shape, dtype, channels_last_stride((1, *shape))[1:])  # type: ignore[arg-type]


def in_range(dim: int, ndim: int) -> bool:
    """Whether `dim` is a dimension of a tensor with this many dimensions; a scalar is treated as one-dimensional."""
    return -max(ndim, 1) <= dim < max(ndim, 1)


def without(values: Sequence[Any], dim: int) -> tuple[Any, ...]:
    """Returns all sizes but the one at `dim`."""
    return (*values[:dim], *values[dim + 1 :])


def arguments_by_name(func: OpOverload, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Returns all arguments by name, with defaults."""
    parameters = schema_of(func).arguments
    bound = dict(zip((p.name for p in parameters), args, strict=False)) | dict(kwargs)
    return {p.name: bound.get(p.name, p.default_value) for p in parameters}


def like(position: int = 0, dtype: torch.dtype | None = None, results: int = 1) -> Rule:
    """Returns a rule of fresh results in the shape and order of dimensions of the argument at `position`."""

    def rule(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
        made = as_before(val_of(args[position]), dtype)
        return made if results == 1 else (made,) * results

    return rule


def row_major_like(position: int = 0, dtype: torch.dtype | None = None) -> Rule:
    """Returns a rule of a fresh row-major result in the shape of the argument at `position`."""

    def rule(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
        val = val_of(args[position])
        return fresh(val, val.shape, dtype)

    return rule
