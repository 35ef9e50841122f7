"""Effects of `torch.use_deterministic_algorithms(True)`: new memory is filled, and some operators are refused.

The flag is among the ambient modes that guards compare, so a trace may read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base import torch_c
from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload, name_in_namespace, schema_of
from smelt.graph.meta_rules.eager_errors import tensors_among

aten = torch.ops.aten


def fill_of_new_memory(dtype: torch.dtype) -> int | float | bool:
    """Returns the value that fills uninitialised memory of a dtype; any constant is valid, if it is the same in every
    run.
    """
    if not (torch_c.deterministic_algorithms() and torch_c.fills_new_memory()):
        return 0
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def refuse_without_order(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Leave an operator without a deterministic form to eager, which raises an error or warns.

    Raises:
        Unsupported: deterministic algorithms are required, and eager's kernel is not deterministic.
    """
    if not torch_c.deterministic_algorithms():
        return
    name = name_in_namespace(func).removesuffix("_")
    if name not in _EVERYWHERE and not (name in _ON_A_GPU and _is_on_a_gpu(args)):
        return
    decides = _ONLY.get(name)
    if decides is None or decides(func, args, kwargs):
        raise Unsupported(
            f"{func} under torch.use_deterministic_algorithms(True)", why="eager raises an error or warns"
        )


def _is_on_a_gpu(args: Sequence[Any]) -> bool:
    return any(tensor.storage_view.layout.val.device.type == "cuda" for tensor in tensors_among(args))


def _given(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    position = next(i for i, argument in enumerate(schema_of(func).arguments) if argument.name == name)
    return (
        args[position] if position < len(args) else kwargs.get(name, schema_of(func).arguments[position].default_value)
    )


def _is_ordered_put(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return not _given(func, args, kwargs, "accumulate") or _is_on_a_gpu(args)


def _is_product(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return _given(func, args, kwargs, "reduce") == "prod"


def _has_weights(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return _given(func, args, kwargs, "weights") is not None


def _takes_largest(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return _given(func, args, kwargs, "mode") == 2


def _returns_indices(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return func._overloadname != "default"


def _adds_reals(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dtype = kwargs.get("dtype") or next(iter(tensors_among(args))).storage_view.layout.val.dtype
    return bool(dtype.is_floating_point or dtype.is_complex)


_EVERYWHERE = frozenset({"put", "max_unpool2d", "max_unpool3d"})
_ON_A_GPU = frozenset(
    """
    histc bincount median nanmedian cumsum scatter_reduce nll_loss2d_forward
    avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
    fractional_max_pool2d_backward fractional_max_pool3d_backward reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
    upsample_trilinear3d_backward grid_sampler_2d_backward grid_sampler_3d_backward _ctc_loss_backward
    _embedding_bag_dense_backward
    """.split()
)
"""Operators without a deterministic kernel on a GPU, from the documentation of `torch.use_deterministic_algorithms`."""
_ONLY = {
    "put": _is_ordered_put,
    "scatter_reduce": _is_product,
    "bincount": _has_weights,
    "_embedding_bag_dense_backward": _takes_largest,
    "median": _returns_indices,
    "nanmedian": _returns_indices,
    "cumsum": _adds_reals,
}
