"""Predicates for guards on tensors that are evaluated in Python; each depends only on its tensors."""

from __future__ import annotations

from itertools import pairwise

import torch

from smelt.base.torch_c import is_plain_view
from smelt.base.torch_private import backward_hooks, is_view, view_base
from smelt.capture import _native as native
from smelt.graph.ir.meta import extent, is_opaque


def share_no_memory(*tensors: torch.Tensor) -> bool:
    """Whether the address ranges of the tensors are disjoint. Tensors made from NumPy arrays may overlap although their
    storages differ."""
    spans: dict[torch.device, list[tuple[int, int]]] = {}
    for tensor in tensors:
        if tensor.numel() and not is_opaque(tensor):
            spans.setdefault(tensor.device, []).append(span(tensor))
    return all(a[1] <= b[0] for group in spans.values() for a, b in pairwise(sorted(group)))


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """(address of the first element, address after the last element) of a tensor."""
    start = tensor.data_ptr()
    return start, start + extent(tuple(tensor.shape), tensor.stride()) * tensor.element_size()


def may_be_written(tensor: torch.Tensor) -> bool:
    """Whether autograd accepts an in-place write to the tensor; see `check_inplace` in PyTorch's
    VariableTypeUtils.h."""
    if tensor.is_inference():
        return True
    if not is_view(tensor):
        return not (tensor.is_leaf and tensor.requires_grad)
    base = view_base(tensor)
    assert base is not None
    return is_plain_view(tensor) and not (tensor.requires_grad and base.is_leaf)


def show_their_bases(*tensors: torch.Tensor) -> bool:
    """Whether each view still shares the memory of its base, so that autograd can describe a write to it by an offset
    in the base; `view.data = x` gives a view other memory."""
    views = ((t, view_base(t)) for t in tensors if t.requires_grad and is_view(t))
    return all(b is None or b.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t, b in views)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a leaf of autograd."""
    return tensor.is_leaf


def is_not_shared(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is not shared with other processes."""
    return not tensor.is_shared()


def requires_grad_itself(tensor: torch.Tensor) -> bool:
    """Whether `requires_grad` of the tensor is its own flag. A view without a history reports the flag of its base, but
    gets no gradient."""
    return tensor.grad_fn is not None or not is_view(tensor)


class BeginsAtMultiple:
    """Guard that a tensor's storage offset in bytes is a multiple of `size`, as a view with a larger dtype requires."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.__name__ = self.__qualname__ = f"begins_at_multiple_of_{size}_bytes"

    def __call__(self, tensor: torch.Tensor) -> bool:
        return tensor.storage_offset() * tensor.itemsize % self.size == 0


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether the tensor has a hook that is called when its gradient is computed or accumulated."""
    return bool(backward_hooks(tensor)) or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


def no_hooks(*tensors: torch.Tensor) -> bool:
    """Whether none of the tensors has a hook that is called when its gradient is computed or accumulated."""
    return not any(map(has_hooks, tensors))


no_hooks.shortcut = native.SHORT_NO_HOOKS  # type: ignore[attr-defined]
