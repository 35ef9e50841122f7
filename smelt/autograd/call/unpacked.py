"""Saved tensors as the backward program was compiled for them: hooks and copies may give them in other layouts.

`torch.autograd.graph.save_on_cpu` keeps values, not strides; other hooks give back other types, sizes or devices. A
backward program reads memory by address, and would read the wrong elements without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.abi.arena import extent
from smelt.base.torch_c import saved_tensor_hooks
from smelt.graph.ir.meta import TensorMeta, may_overlap, meta_of


def packed_metas(saved: Sequence[torch.Tensor]) -> list[TensorMeta] | None:
    """What the tensors are, if hooks are about to replace them."""
    return None if saved_tensor_hooks() is None else [meta_of(tensor) for tensor in saved]


def unpacked(saved: Sequence[torch.Tensor], metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
    """What hooks gave back, in the strides of what they were given.

    Raises:
        RuntimeError: they gave back something else: no program was compiled for that.
    """
    return [_as_packed(tensor, meta) for tensor, meta in zip(saved, metas, strict=True)]


def _as_packed(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    same = tensor.layout is torch.strided and (tuple(tensor.shape), tensor.dtype) == (meta.shape, meta.dtype)
    if not same or tensor.device != meta.device:
        raise RuntimeError(
            "smelt: a saved tensor was unpacked by a hook (torch.autograd.graph.saved_tensors_hooks) as "
            f"{_told(meta_of(tensor))} and had been packed as {_told(meta)}: the compiled backward is for that"
        )
    if not tensor.numel():
        return tensor
    if tensor.stride() == meta.stride and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    size = extent(meta.shape, meta.stride)
    out = tensor.new_empty(size).as_strided(meta.shape, meta.stride)
    if 0 in meta.stride:  # what is repeated is written once
        once = tuple(slice(1) if step == 0 else slice(None) for step in meta.stride)
        out, tensor = out[once], tensor[once]
    if may_overlap(out.shape, out.stride()):  # windows: what two of them show is equal in both
        places = torch.arange(size, device=tensor.device).as_strided(out.shape, out.stride())
        flat = out.as_strided((size,), (1,))
        flat[places] = tensor
    else:
        out.copy_(tensor)
    return out.as_strided(meta.shape, meta.stride)


def _told(meta: TensorMeta) -> str:
    return f"{str(meta.dtype).removeprefix('torch.')}{list(meta.shape)} on {meta.device}"


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the same strides, gaps and repeats included."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor.clone()
    shape, stride = tensor.shape, tensor.stride()
    return tensor.as_strided((extent(shape, stride),), (1,)).clone().as_strided(shape, stride)
