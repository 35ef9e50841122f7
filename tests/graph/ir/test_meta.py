"""Metadata against real tensors."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from smelt.graph.ir.meta import (
    TensorMeta,
    channels_last_stride,
    contiguous_stride,
    extent,
    is_channels_last,
    is_dense,
    may_overlap,
    meta_of,
)

shapes = st.lists(st.integers(0, 4), max_size=5)


@given(shapes)
def test_contiguous_stride(shape: list[int]) -> None:
    assert contiguous_stride(shape) == torch.empty(shape).stride()


def test_meta_of() -> None:
    meta = meta_of(torch.empty(2, 3, dtype=torch.float16, requires_grad=True).t())
    assert meta == TensorMeta((3, 2), torch.float16, (1, 3), torch.device("cpu"), True)
    assert (meta.ndim, meta.numel, meta.nbytes) == (2, 6, 12)
    assert str(meta) == "float16[3, 2] stride [1, 3]"


@given(st.permutations(range(3)), st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_permuted_tensors_are_dense(order: list[int], shape: list[int]) -> None:
    tensor = torch.empty(shape).permute(order)
    assert is_dense(tensor.shape, tensor.stride())


def test_gaps_and_repeats_are_not_dense() -> None:
    base = torch.empty(4, 6)
    for tensor in (base[:, ::2], base[:, :3], torch.empty(1, 6).expand(4, 6)):
        assert not is_dense(tensor.shape, tensor.stride())


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), max_size=3),
)
def test_may_overlap_never_misses(dims: list[tuple[int, int]]) -> None:
    shape, stride = [n for n, _ in dims], [s for _, s in dims]
    offsets = [
        sum(i * s for i, s in zip(index, stride, strict=True)) for index in itertools.product(*map(range, shape))
    ]
    if len(set(offsets)) < len(offsets):
        assert may_overlap(shape, stride)
    assert extent(shape, stride) == max(offsets) + 1


def test_may_overlap_knows_plain_views() -> None:
    base = torch.empty(4, 6)
    for tensor in (base, base.t(), base[1:, ::2], base[:, :1].squeeze(), base.diagonal()):
        assert not may_overlap(tensor.shape, tensor.stride())
    assert may_overlap((4, 2, 5), base.unfold(1, 5, 1).stride())


@given(st.lists(st.integers(1, 3), min_size=4, max_size=4), st.booleans())
def test_channels_last_as_pytorch_sees_it(shape: list[int], last: bool) -> None:
    tensor = torch.empty(shape)
    if last:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
        assert tensor.stride() == channels_last_stride(shape) or tensor.is_contiguous()
    follows = torch.empty_like(tensor.abs()).stride() == channels_last_stride(shape)
    if is_channels_last(tensor.shape, tensor.stride()):
        assert follows
