"""The layouts in which the sweeps give a tensor: what lies between and before its elements is poison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

LAYOUTS = ("own", "gaps", "steps", "transposed", "offset", "last", "expanded", "zero", "one")
"""As it is; a gap behind each row; every second element; columns first; one element after the start of its memory;
channels last; the first row again and again; 0 or 1 in place of a size."""
SIZES = {"zero": 0, "one": 1}


def laid_out(values: Any, layout: str) -> Iterator[Any]:
    """The arguments with their tensors in that layout, where it changes one; for each size that is replaced once."""
    if layout not in SIZES:
        made = tree_map(lambda x: lay_out(x, layout) if isinstance(x, torch.Tensor) else x, values)
        if layout == "own" or _differ(made, values):
            yield made
        return
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor) and _can(x)]
    for size in sorted({n for x in tensors for n in x.shape if n > 1}):
        yield tree_map(lambda x: _cut(x, size, SIZES[layout]) if isinstance(x, torch.Tensor) else x, values)  # noqa: B023


def _differ(made: Any, values: Any) -> bool:
    return any(a is not b for a, b in zip(tree_leaves(made), tree_leaves(values), strict=True))


def _cut(x: torch.Tensor, size: int, to: int) -> torch.Tensor:
    """A part of `x`, in its strides, that has `to` in place of this size."""
    if not _can(x) or size not in x.shape:
        return x
    made = x.detach()
    for d, n in enumerate(x.shape):
        made = made.narrow(d, 0, to) if n == size else made
    return _like_its_own(made, x)


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of `x` in that layout; `x` itself where it has none (no dimension, sparse, elements that overlap)."""
    if layout == "own" or not _can(x):
        return x
    if layout == "transposed":
        if x.dim() < 2 or 1 in x.shape[-2:]:
            return x
        made = x.detach().transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)
    elif layout == "last":
        if x.dim() not in (4, 5):
            return x
        made = x.detach().clone(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    elif layout == "expanded":
        made = x.detach()[:1].clone().expand(x.shape)
    else:
        made = _room(x, layout)
        made.copy_(x.detach())
    return _like_its_own(made, x)


def _like_its_own(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if type(x) is torch.nn.Parameter:
        return torch.nn.Parameter(made, x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def _can(x: torch.Tensor) -> bool:
    return (
        x.layout is torch.strided
        and x.dim() > 0
        and x.numel() > 0
        and not (x.is_quantized or x.is_conj() or x.is_neg())
        and type(x) in (torch.Tensor, torch.nn.Parameter)
    )


def _room(x: torch.Tensor, layout: str) -> torch.Tensor:
    *rows, last = x.shape
    if layout == "gaps":
        return poison([*rows, last + 3], x)[..., :last]
    if layout == "steps":
        return poison([*rows, 2 * last], x)[..., ::2]
    return poison([x.numel() + 1], x)[1:].view(x.shape)


def poison(shape: list[int], like: torch.Tensor) -> torch.Tensor:
    """Memory whose values show in any result that reads them."""
    value = float("nan") if like.is_floating_point() or like.is_complex() else True if like.dtype is torch.bool else 77
    return torch.full(shape, value, dtype=like.dtype, device=like.device)
