"""Gives saved tensors the layout for which the backward program was compiled, which hooks may have changed.

`torch.autograd.graph.save_on_cpu` keeps values, not strides; other hooks may return other dtypes, sizes or
devices. A backward program reads memory by address, and would silently read wrong elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.abi.arena import extent
from smelt.autograd import _native
from smelt.base.torch_c import saved_tensor_hooks, without_torch_function
from smelt.graph.ir.meta import TensorMeta, may_overlap, meta_of


def packed_metas(saved: Sequence[torch.Tensor]) -> list[TensorMeta] | None:
    """Returns the metadata of the tensors if hooks on saved tensors are active, else None."""
    return None if saved_tensor_hooks() is None else [meta_of(tensor) for tensor in saved]


def unpacked(saved: Sequence[torch.Tensor], metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
    """Returns the tensors that hooks returned, with the strides of the tensors that the hooks were given.

    Raises:
        RuntimeError: a hook returned another size, dtype or device, for which no program was compiled.
    """
    return [_as_packed(tensor, meta) for tensor, meta in zip(saved, metas, strict=True)]


DESCRIBED: bool = _native.memory_marks_init(torch.Tensor)
"""Whether tensors can be described in C; False on a torch without DLPack's exchange table, where Python attributes are
read."""


memory_marks = _native.memory_marks
"""Function of (tensors, positions, whether addresses matter) that returns 8 bytes for each tensor at these positions,
equal for equal layouts (and addresses); None if a tensor cannot be described.
"""


def is_same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype are the same view of the same memory."""
    same = one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
    return same and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


def kinds_of(saved: Sequence[torch.Tensor], own: Sequence[tuple[int, TensorMeta]]) -> tuple[tuple[int, ...], bytes]:
    """Returns (positions of `own`, their description), which `same_kinds` compares; the description is None if a tensor
    has none.
    """
    positions = tuple(k for k, _ in own)
    if not positions:
        return (), b""
    marks = memory_marks([*saved], positions, False) if DESCRIBED else None
    return (positions, marks) if marks else ((), b"?")


def inputs_among(
    saved: Sequence[torch.Tensor], copied: Sequence[int], inputs: Sequence[torch.Tensor], itself: frozenset[int]
) -> tuple[list[int], list[tuple[int, TensorMeta]]]:
    """Returns the positions of inputs among the saved tensors, as two lists: inputs of which eager saves only views,
    and inputs that eager saves directly, with their metadata.

    If an input that eager saves directly occurs twice, the first occurrence is the tensor and the second is an alias of
    its memory.
    """
    own = {id(tensor): i in itself for i, tensor in enumerate(inputs)}
    first = {id(tensor): k for k, tensor in reversed(list(enumerate(saved)))}
    direct = [k for k, tensor in enumerate(saved) if id(tensor) in own and k not in copied]
    themselves = {k for k in direct if own[id(saved[k])] and first[id(saved[k])] == k}
    return [k for k in direct if k not in themselves], [(k, meta_of(saved[k])) for k in direct if k in themselves]


def same_kinds(saved: list[torch.Tensor], kinds: tuple[tuple[int, ...], bytes]) -> bool:
    """Whether the tensors are certain to have the sizes, strides, dtypes and devices that `kinds_of` found at the first
    call."""
    return kinds == ((), b"") or memory_marks(saved, kinds[0], False) == kinds[1]


def lay_out_replaced(saved: list[torch.Tensor], own: Sequence[tuple[int, TensorMeta]]) -> None:
    """Copy replacements (`x.data = y`) of saved inputs to the strides that the program reads, in place in `saved`.

    Raises:
        RuntimeError: a replacement has another size, dtype or device.
    """
    for k, meta in own:
        tensor = saved[k]
        if not is_like(tensor, meta):
            raise RuntimeError(
                f"smelt: an input that the backward reads was {_describe(meta)} when the function was called, and is "
                f"{_describe(meta_of(tensor))} now: its .data was replaced, and the compiled backward is for the former"
            )
        saved[k] = _laid_out(tensor, meta)


def _as_packed(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    if not is_like(tensor, meta):
        raise RuntimeError(
            "smelt: a saved tensor was unpacked by a hook (torch.autograd.graph.saved_tensors_hooks) as "
            f"{_describe(meta_of(tensor))} and had been packed as {_describe(meta)}: the compiled backward is for that"
        )
    return _laid_out(tensor, meta)


def is_like(tensor: torch.Tensor, meta: TensorMeta) -> bool:
    """Whether a program that was compiled for `meta` can read the tensor, or a copy of it with the strides of
    `meta`."""
    same = tensor.layout is torch.strided and (tuple(tensor.shape), tensor.dtype) == (meta.shape, meta.dtype)
    return same and tensor.device == meta.device


def _laid_out(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    if not tensor.numel():
        return tensor
    if tensor.stride() == meta.stride and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    size = extent(meta.shape, meta.stride)
    out = tensor.new_empty(size).as_strided(meta.shape, meta.stride)
    if 0 in meta.stride:  # elements that a stride of 0 repeats are written once
        once = tuple(slice(1) if step == 0 else slice(None) for step in meta.stride)
        out, tensor = out[once], tensor[once]
    if may_overlap(out.shape, out.stride()):  # overlapping windows: shared elements are equal in both
        offsets = torch.arange(size, device=tensor.device).as_strided(out.shape, out.stride())
        flat = out.as_strided((size,), (1,))
        flat[offsets] = tensor
    else:
        out.copy_(tensor)
    return out.as_strided(meta.shape, meta.stride)


def _describe(meta: TensorMeta) -> str:
    return f"{str(meta.dtype).removeprefix('torch.')}{list(meta.shape)} on {meta.device}"


def hold_memory(saved: list[torch.Tensor], positions: Sequence[int]) -> None:
    """Replace these saved tensors by aliases: tensors with the same memory and version counter, which `x.data = y` does
    not change.

    The user's torch modes do not see the operation.
    """
    if not positions:
        return
    # The context is written in C: no interrupt comes between its switch and the body, or before it switches back.
    with without_torch_function():
        for k in positions:
            saved[k] = saved[k].detach()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same strides, gaps and repeated elements included."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor.clone()
    shape, stride = tensor.shape, tensor.stride()
    return tensor.as_strided((extent(shape, stride),), (1,)).clone().as_strided(shape, stride)
