"""Metadata of tensors, which every value of every fx graph has as `node.meta["val"]`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.shapes.size import IntLike, hint, is_symbolic, known_equal, known_less, same, same_all
from smelt.shapes.unbacked import is_unbacked


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape (elements), stride (elements), dtype and device of a strided tensor.

    In a graph for many sizes, shape and stride may contain a `Size` (typed as int: it behaves like one).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device
    requires_grad: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the elements, without gaps or repeats."""
        return self.numel * self.dtype.itemsize

    @property
    def symbolic(self) -> bool:
        """Whether a size or stride is not a plain number."""
        return is_symbolic(self.shape) or is_symbolic(self.stride)

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        device = "" if self.device.type == "cpu" else f"@{self.device}"
        layout = "" if same_all(self.stride, contiguous_stride(self.shape)) else f" stride {list(self.stride)}"
        return f"{name}{list(self.shape)}{layout}{device}"


@dataclass(frozen=True, slots=True)
class OpaqueMeta(TensorMeta):
    """Metadata of a sparse or quantised tensor. `stride` has no meaning.

    Attributes:
        layout: strided for a quantised tensor.
        details: for sparse_coo, the numbers of sparse and of dense dimensions; for compressed layouts, the dtype of
            indices, the number of dense dimensions and the block size; for a quantised tensor, the scheme and the axis
            of its channels.
    """

    layout: torch.layout = torch.strided
    details: tuple[Any, ...] = ()

    def __str__(self) -> str:
        kind = "quantized" if self.layout is torch.strided else str(self.layout).removeprefix("torch.")
        device = "" if self.device.type == "cpu" else f"@{self.device}"
        return f"{kind} {str(self.dtype).removeprefix('torch.')}{list(self.shape)}{device}"


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory does not contain its values unchanged: conjugate or negative views, zeros without
    memory.
    """
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def is_opaque(tensor: torch.Tensor) -> bool:
    """Whether the tensor's metadata in graphs is an `OpaqueMeta`."""
    return tensor.layout in _SPARSE or tensor.is_quantized


_COMPRESSED = {
    torch.sparse_csr: torch.Tensor.crow_indices,
    torch.sparse_bsr: torch.Tensor.crow_indices,
    torch.sparse_csc: torch.Tensor.ccol_indices,
    torch.sparse_bsc: torch.Tensor.ccol_indices,
}
_SPARSE = frozenset({torch.sparse_coo, *_COMPRESSED})


def _opaque_meta(tensor: torch.Tensor) -> OpaqueMeta:
    details: tuple[Any, ...]
    if tensor.layout is torch.sparse_coo:
        details = tensor.sparse_dim(), tensor.dense_dim()
    elif tensor.is_quantized:
        scheme = tensor.qscheme()
        details = (scheme, tensor.q_per_channel_axis()) if "channel" in str(scheme) else (scheme,)
    else:
        indices, values, dense = _COMPRESSED[tensor.layout](tensor), tensor.values(), tensor.dense_dim()
        blocks = tensor.layout in (torch.sparse_bsr, torch.sparse_bsc)
        details = indices.dtype, dense, *(values.shape[values.ndim - dense - 2 : values.ndim - dense] if blocks else ())
    shape, grad = tuple(tensor.shape), bool(tensor.requires_grad)
    return OpaqueMeta(shape, tensor.dtype, contiguous_stride(shape), tensor.device, grad, tensor.layout, details)


def is_alike(meta: OpaqueMeta, tensor: torch.Tensor) -> bool:
    """Whether a tensor is opaque with the same layout and details."""
    return is_opaque(tensor) and (tensor.layout, _opaque_meta(tensor).details) == (meta.layout, meta.details)


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """Returns the metadata of a tensor (real or traced)."""
    view: Any = getattr(tensor, "storage_view", None)
    if view is not None:
        return _with_gradient(view.layout.val, bool(tensor.requires_grad))
    if is_opaque(tensor):
        return _opaque_meta(tensor)
    return TensorMeta(
        tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), tensor.device, bool(tensor.requires_grad)
    )


def _with_gradient(meta: TensorMeta, requires_grad: bool) -> TensorMeta:
    """Returns the same metadata with this `requires_grad`. It runs for each node, and `replace` takes four times as
    long.
    """
    if meta.requires_grad is requires_grad:
        return meta
    if type(meta) is not TensorMeta:
        return replace(meta, requires_grad=requires_grad)
    return TensorMeta(meta.shape, meta.dtype, meta.stride, meta.device, requires_grad)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns row-major strides as PyTorch sets them: sizes of 0 are treated as 1."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1 if type(size) is int else size  # if a symbolic size is 0 at a call, strides do not matter
    return tuple(reversed(strides))


def same_steps(shape: Sequence[IntLike], a: Sequence[IntLike], b: Sequence[IntLike]) -> bool:
    """Whether two strides address the same elements of a tensor of this shape (dimensions of size 1 are ignored)."""
    return all(same(n, 1) or same(x, y) for n, x, y in zip(shape, a, b, strict=True))


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the tensor is row-major, without gaps or overlap, in some order of the dimensions.

    A tensor without elements is dense, as for PyTorch.
    """
    if any(same(n, 0) for n in shape):
        return True
    if is_symbolic(shape) or is_symbolic(stride):
        return _is_dense_for_all(shape, stride)
    step = 1
    for size, this in sorted(((n, s) for n, s in zip(shape, stride, strict=True) if n > 1), key=lambda p: p[::-1]):
        if this != step:
            return False
        step *= size
    return True


def memory_order(val: TensorMeta) -> list[int] | None:
    """Returns the permutation that makes a dense tensor row-major, or None if it has gaps or overlap."""
    if not is_dense(val.shape, val.stride):
        return None
    return sorted(range(val.ndim), key=lambda d: (-hint(val.stride[d]), same(val.shape[d], 1), d))


def inverse(order: Sequence[int]) -> list[int]:
    """Returns the permutation that undoes `order`."""
    out = [0] * len(order)
    for i, d in enumerate(order):
        out[d] = i
    return out


def _is_dense_for_all(shape: Sequence[IntLike], stride: Sequence[IntLike]) -> bool:
    """Whether `is_dense` is true for all values of symbolic sizes, with the same order of the dimensions."""
    left = [(n, s) for n, s in zip(shape, stride, strict=True) if not known_equal(n, 1)]
    step: IntLike = 1
    while left:
        at = next((i for i, (_, s) in enumerate(left) if known_equal(s, step)), None)
        if at is None:
            return False
        step = step * left.pop(at)[0]
    return True


def without_gaps(meta: TensorMeta) -> TensorMeta:
    """Returns `meta`, with row-major strides if its own have gaps or overlap."""
    if is_dense(meta.shape, meta.stride):
        return meta
    return TensorMeta(meta.shape, meta.dtype, contiguous_stride(meta.shape), meta.device)


def accumulated(own: TensorMeta, computed: TensorMeta) -> TensorMeta:
    """Returns the layout of the first gradient that PyTorch's engine stores at a leaf: the computed one if it agrees
    with the leaf's.

    For sizes of 1 any stride agrees. A leaf with gaps gets a row-major gradient. (PyTorch: `grad_layout_contract.h`)
    """
    wanted = without_gaps(own)
    return computed if same_steps(wanted.shape, wanted.stride, computed.stride) else wanted


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two positions may be the same element in memory (`expand`, `unfold`)."""
    if is_symbolic(shape) or is_symbolic(stride):
        return not _is_dense_for_all(shape, stride) and _overlap(shape, stride, known_less)
    reach = 0
    for step, size in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1 and 0 not in shape):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether positions overlap, like `may_overlap`, but always decided: if neither can be proved, the example's sizes
    decide, and the answer becomes an assumption.
    """

    def less(a: IntLike, b: IntLike) -> bool:
        return known_less(a, b) or (not is_unbacked(a, b) and a < b)

    return may_overlap(shape, stride) and (not is_symbolic([*shape, *stride]) or _overlap(shape, stride, less))


def _overlap(shape: Sequence[IntLike], stride: Sequence[IntLike], less: Callable[[IntLike, IntLike], bool]) -> bool:
    if any(same(n, 0) for n in shape):
        return False
    pairs = [(s, n) for n, s in zip(shape, stride, strict=True) if not same(n, 1)]
    reach: IntLike = 0
    for step, size in sorted(pairs, key=lambda p: hint(p[0])):
        if not less(reach, step):
            return True
        reach = reach + step * (size - 1)
    return False


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Returns the number of elements from the first to the last of the tensor in memory, gaps included (0 if it has
    none).
    """
    last = 0
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * step
    return last + 1


def reach(shape: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """Returns the number of elements from the beginning of the memory to the last one of a view of it (0 if it has
    none).
    """
    own = extent(shape, stride)
    return 0 if same(own, 0) else offset + own


def is_channels_last(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether PyTorch treats the strides of an image batch (4 or 5 dimensions) as channels last.

    If sizes of 1 allow both, PyTorch prefers row-major, and so does this function.
    """
    if len(shape) not in (4, 5) or any(same(n, 0) for n in shape) or same(stride[1], 0):
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if stride[dim] < least or (dim == 0 and least == stride[1]):
            return False
        least = stride[dim] * shape[dim]
    return True


def channels_last_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a dense image batch (N, C, spatial ...) whose channels are innermost.

    As in PyTorch, a size of 0 is treated as 0, unlike in row-major strides.
    """
    stride, step = [0] * len(shape), 1
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        stride[d] = step
        step *= shape[d]
    return tuple(stride)


def by_element_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of dense weights (N, C, spatial ...) in the order (spatial ..., C, N), with N innermost."""
    return _dense_stride(shape, (*range(2, len(shape)), 1, 0))


def _dense_stride(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a dense tensor with the dimensions in this order, the last innermost."""
    inner = contiguous_stride([shape[d] for d in order])
    return tuple(inner[order.index(d)] for d in range(len(shape)))
