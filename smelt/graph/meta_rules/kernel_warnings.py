"""Warnings of torch's kernels about shapes or dtypes, for compiled code, which does not run these kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.base.torch_private import OpOverload
from smelt.base.warned import Warned, heard

aten = torch.ops.aten


def _has_no_freedom(x: Any, dim: Any = None, *, correction: Any = None, **_: Any) -> bool:
    """Whether fewer elements are reduced than the correction needs."""
    sizes = [*x.shape] if not dim and x.dim() else [x.shape[d] for d in dim or ()]
    least = 1 if correction is None else correction
    known = all(type(size) is int for size in sizes) and isinstance(least, (int, float))
    return known and bool(prod(sizes) <= least)


def _empty_call(kernel: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    """A call without elements of a kernel that warns."""
    return lambda x, *_, **__: kernel(torch.empty(0, dtype=x.dtype))


def _is_byte_mask(x: Any, indices: Sequence[Any], *_: Any, **__: Any) -> bool:
    """Whether a mask has dtype uint8, about which the kernel warns."""
    return any(index is not None and index.dtype is torch.uint8 for index in indices)


def _index_by_bytes(x: Any, indices: Sequence[Any], *_: Any, **__: Any) -> Any:
    masks = sum(index is not None and index.dtype is torch.uint8 for index in indices)
    return aten.index(torch.empty([0] * masks), [torch.empty(0, dtype=torch.uint8)] * masks)


_REDUCING: dict[OpOverload, tuple[Callable[..., bool], Callable[..., Any]]] = {
    aten.std.correction: (_has_no_freedom, _empty_call(torch.std)),
    aten.var.correction: (_has_no_freedom, _empty_call(torch.var)),
    aten.std_mean.correction: (_has_no_freedom, _empty_call(torch.std_mean)),
    aten.var_mean.correction: (_has_no_freedom, _empty_call(torch.var_mean)),
}
_INDEXING: dict[OpOverload, tuple[Callable[..., bool], Callable[..., Any]]] = dict.fromkeys(
    (aten.index.Tensor, aten.index_put.default, aten.index_put_.default), (_is_byte_mask, _index_by_bytes)
)
_KERNELS = _REDUCING | _INDEXING
"""For each operator, (function that decides whether it warns about the arguments, a call without elements that gives
the same warning).
"""


def only_warns(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator's kernel accepts these arguments, and only warns about them."""
    return func in _REDUCING and _REDUCING[func][0](*args, **kwargs)


def warnings_of(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Warned]:
    """Returns the warnings of the operator's kernel for arguments of known shapes."""
    if func not in _KERNELS:
        return []
    warns, call = _KERNELS[func]
    found: list[Warned] = []
    if warns(*args, **kwargs):
        with heard(found), _disable_current_modes():
            call(*args, **kwargs)
    return [Warned(each.message, each.category, None, 0, each.source) for each in found]
