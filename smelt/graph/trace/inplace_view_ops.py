"""In-place changes of a tensor's shape (`x.t_()`): the tensor object becomes a view of the former tensor.

Eager changes the metadata of the tensor itself. After a write it rebuilds the history of the tensor's views from their
strides in memory. For tensors without data the engine would rebuild it with the views' own operators, from a base that
would now have another shape. So the base keeps its shape, and only the Python object changes: `x.t_()` has the effect
of `x = x.t()` for all references to `x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import increment_version

from smelt.base.torch_c import is_plain_view, swap_implementations
from smelt.base.torch_private import view_base
from smelt.graph.ir.storage_view import ViewedTensor


def _in_place_form(name: str) -> Callable[..., Any]:
    """Returns the in-place method `name` of tensors, implemented by the view of the same name without its
    underscore.
    """
    in_place, view = getattr(torch.Tensor, name), getattr(torch.Tensor, name.removesuffix("_"))

    def method(self: ViewedTensor, *args: Any, **kwargs: Any) -> ViewedTensor:
        if not _becomes_view(self):
            out: ViewedTensor = in_place(self, *args, **kwargs)
            return out
        viewed = _view_of(self, lambda: view(self, *args, **kwargs))
        if viewed is not self:
            swap_implementations(self, viewed)
            self.storage_view, viewed.storage_view = viewed.storage_view, self.storage_view
        increment_version(self)
        return self

    method.__name__, method.__qualname__ = name, f"InplaceViewOps.{name}"
    return method


def _view_of(tensor: torch.Tensor, view: Callable[[], Any]) -> Any:
    """Returns the view with the tensor's history, if it has any, in any grad mode, as the mode may change later.

    If autograd refuses to continue the tensor's history (one of several results whose base was written), a program may
    still change its shape under no_grad.
    """
    if not torch.is_grad_enabled() and not _history_continues(tensor):
        return view()
    with torch.enable_grad():
        return view()


def _history_continues(tensor: torch.Tensor) -> bool:
    """Whether autograd continues the tensor's history: reading it rebuilds it after a write to the base, or raises an
    error.
    """
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return False
    return True


def _becomes_view(tensor: torch.Tensor) -> bool:
    """Whether the object may become a view.

    It must not if autograd refuses the operation, or under no_grad if it is not a view, since its history keeps the old
    shape.
    """
    if not tensor.requires_grad:
        return True
    base, writes = view_base(tensor), torch.is_grad_enabled()
    if base is None:
        return writes and not tensor.is_leaf
    return not writes or is_plain_view(tensor) and not base.is_leaf and not tensor.is_leaf


class InplaceViewOps(ViewedTensor):
    """The methods that change a tensor's shape in place: the object becomes a view."""

    __slots__ = ()

    t_ = _in_place_form("t_")
    transpose_ = _in_place_form("transpose_")
    swapaxes_ = _in_place_form("swapaxes_")
    swapdims_ = _in_place_form("swapdims_")
    unsqueeze_ = _in_place_form("unsqueeze_")
    squeeze_ = _in_place_form("squeeze_")
    as_strided_ = _in_place_form("as_strided_")
