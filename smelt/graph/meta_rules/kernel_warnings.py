"""Warnings that kernels of torch give at each call for what shapes tell: compiled code does not run these kernels."""

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
    """Fewer elements are reduced than the correction needs."""
    sizes = [*x.shape] if not dim and x.dim() else [x.shape[d] for d in dim or ()]
    least = 1 if correction is None else correction
    known = all(type(size) is int for size in sizes) and isinstance(least, (int, float))
    return known and bool(prod(sizes) <= least)


_KERNELS: dict[OpOverload, tuple[Callable[..., bool], Callable[[torch.Tensor], Any]]] = {
    aten.std.correction: (_has_no_freedom, torch.std),
    aten.var.correction: (_has_no_freedom, torch.var),
    aten.std_mean.correction: (_has_no_freedom, torch.std_mean),
    aten.var_mean.correction: (_has_no_freedom, torch.var_mean),
}
"""Operator -> whether it warns of arguments, and a function of an empty tensor that warns in the same words."""


def is_warned_of(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator's kernel warns of these arguments."""
    return func in _KERNELS and _KERNELS[func][0](*args, **kwargs)


def warnings_of(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Warned]:
    """What the operator's kernel warns of, for arguments of which shapes are known."""
    if not is_warned_of(func, args, kwargs):
        return []
    found: list[Warned] = []
    with heard(found), _disable_current_modes():
        _KERNELS[func][1](torch.empty(0, dtype=args[0].dtype))
    return [Warned(each.message, each.category, None, 0, each.source) for each in found]
