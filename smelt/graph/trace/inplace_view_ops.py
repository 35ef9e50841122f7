"""In-place changes of a tensor's shape (`x.t_()`): the object becomes a view of what it was.

Eager changes the metadata of the tensor itself, and makes the history of its views again from where they lie in memory.
For tensors without data the engine makes it again by the views' own operators, from a base that would now have another
shape. So the base keeps its shape, and only the Python object moves: `x.t_()` does what `x = x.t()` would, for all that
hold `x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import increment_version

from smelt.base.torch_c import is_plain_view, swap_implementations
from smelt.base.torch_private import view_base
from smelt.graph.ir.storage_view import ViewedTensor


def _turning(name: str) -> Callable[..., Any]:
    """The method `name` of tensors (with its underscore), by the view that it makes."""
    in_place, view = getattr(torch.Tensor, name), getattr(torch.Tensor, name.removesuffix("_"))

    def turn(self: ViewedTensor, *args: Any, **kwargs: Any) -> ViewedTensor:
        if not _becomes_view(self):
            out: ViewedTensor = in_place(self, *args, **kwargs)
            return out
        moved = _view_of(self, lambda: view(self, *args, **kwargs))
        if moved is not self:
            swap_implementations(self, moved)
            self.storage_view, moved.storage_view = moved.storage_view, self.storage_view
        increment_version(self)
        return self

    turn.__name__, turn.__qualname__ = name, f"InplaceViewOps.{name}"
    return turn


def _view_of(tensor: torch.Tensor, view: Callable[[], Any]) -> Any:
    """The view with the tensor's history; what has none gets none. Nobody may tell later which mode this was.

    Where autograd forbids the tensor's own history to go on (one of several results whose base was written), a caller
    in no_grad may still turn it.
    """
    if not torch.is_grad_enabled() and not _may_go_on(tensor):
        return view()
    with torch.enable_grad():
        return view()


def _may_go_on(tensor: torch.Tensor) -> bool:
    """Asking for the history makes it again after a write to the base, or says that this is not to be."""
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return False
    return True


def _becomes_view(tensor: torch.Tensor) -> bool:
    """Not where autograd refuses, nor under no_grad what is no view: its history stays that of its old shape."""
    if not tensor.requires_grad:
        return True
    base, writes = view_base(tensor), torch.is_grad_enabled()
    if base is None:
        return writes and not tensor.is_leaf
    return not writes or is_plain_view(tensor) and not base.is_leaf and not tensor.is_leaf


class InplaceViewOps(ViewedTensor):
    """The methods that change a tensor's shape in place: the object becomes a view."""

    __slots__ = ()

    t_ = _turning("t_")
    transpose_ = _turning("transpose_")
    swapaxes_ = _turning("swapaxes_")
    swapdims_ = _turning("swapdims_")
    unsqueeze_ = _turning("unsqueeze_")
    squeeze_ = _turning("squeeze_")
    as_strided_ = _turning("as_strided_")
