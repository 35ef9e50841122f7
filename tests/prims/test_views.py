"""Views and copies: values against numpy, strides against those of torch's views."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from smelt.prims.table import PRIMS
from smelt.prims.views import reshaped_stride
from smelt.shapes.assumptions import Assumptions
from tests.prims.prim_check import checked, to_meta


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape))).reshape(shape)


def same_strides(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Of dimensions of one element they say nothing, of nothing neither."""
    return 0 in shape or all(a == b for n, a, b in zip(shape, one, other, strict=True) if n != 1)


def as_torch(name: str, x: torch.Tensor, *args: Any) -> torch.Tensor:
    """A view's values, and strides as torch's own view has them."""
    got, meta = checked(name, x, *args), PRIMS[name].meta(meta_of(x), *args)
    assert same_strides(meta.shape, meta.stride, got.stride())
    return got


SHAPES = [(), (1,), (12,), (3, 4), (4, 1, 3), (1, 2, 3, 2), (2, 6), (6, 2, 1), (12, 1), (1, 12)]


@pytest.mark.parametrize("shape", SHAPES)
def test_reshape_of_any_layout_to_any_shape(shape: tuple[int, ...]) -> None:
    """Strides exist exactly where `view` needs no copy."""
    count = int(np.prod(shape))
    for order in itertools.permutations(range(len(shape))):
        turned = numbered(*(shape[d] for d in order)).permute([order.index(d) for d in range(len(shape))])
        for x in (turned, turned.unsqueeze(-1).expand(*shape, 2)[..., 0]):
            assert x.shape == shape
            for new in SHAPES:
                if int(np.prod(new)) != count:
                    continue
                np.testing.assert_array_equal(checked("reshape", x, new), x.numpy().reshape(new))
                stride = reshaped_stride(shape, x.stride(), new)
                try:
                    want = x.view(new).stride()
                except RuntimeError:
                    assert stride is None
                    want = torch.empty(new).stride()
                else:
                    assert stride is not None and same_strides(new, stride, want)
                assert same_strides(new, ops.reshape.meta(meta_of(x), new).stride, want)


@pytest.mark.parametrize(("x", "new"), [((0, 3), (3, 0)), ((2, 0), (0,)), ((0,), (5, 0, 2))])
def test_reshape_of_nothing(x: tuple[int, ...], new: tuple[int, ...]) -> None:
    assert checked("reshape", torch.zeros(x), new).shape == new


def test_repeats_stay_repeats() -> None:
    x = numbered(3, 1).expand(3, 8)
    assert reshaped_stride((3, 8), x.stride(), (3, 2, 4)) == (1, 0, 0)
    assert reshaped_stride((3, 8), x.stride(), (24,)) is None


def test_symbolic_sizes_merge_and_split_where_that_is_known() -> None:
    env = Assumptions()
    n, m = env.symbol(4), env.symbol(6)
    assert reshaped_stride((n, m, 3), (3 * m, 3, 1), (n * m, 3)) == (3, 1)
    assert reshaped_stride((n * m, 3), (3, 1), (n, m, 3)) == (3 * m, 3, 1)
    assert reshaped_stride((n, m), (1, n), (n * m,)) is None
    assert not env.assumed


@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_permute(dims: tuple[int, ...]) -> None:
    for x in (numbered(2, 3, 4), numbered(4, 1, 2), torch.zeros(2, 0, 3)):
        np.testing.assert_array_equal(as_torch("permute", x, dims), x.numpy().transpose(dims))


@pytest.mark.parametrize(
    ("x", "shape", "dims"),
    [((), (2, 3), ()), ((3,), (2, 3), (1,)), ((2,), (2, 3), (0,)), ((1, 3), (4, 2, 3), (0, 2)), ((1,), (0,), (0,))],
)
def test_broadcast_in_dim(x: tuple[int, ...], shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    value = numbered(*x)
    got = as_torch("broadcast_in_dim", value, shape, dims)
    axes = tuple(d for d in range(len(shape)) if d not in dims)
    np.testing.assert_array_equal(got, np.broadcast_to(np.expand_dims(value.numpy(), axes), shape))


@pytest.mark.parametrize(
    ("starts", "stops", "steps"),
    [((0, 0), (5, 6), (1, 1)), ((1, 2), (5, 6), (2, 3)), ((2, 6), (2, 6), (1, 1)), ((0, 5), (5, 6), (7, 4))],
)
def test_slice(starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> None:
    for x in (numbered(5, 6), numbered(6, 5).t()):
        got = as_torch("slice", x, starts, stops, steps)
        np.testing.assert_array_equal(got, x.numpy()[tuple(map(slice, starts, stops, steps))])


@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 1)])
def test_flip(dims: tuple[int, ...]) -> None:
    for x in (numbered(3, 4), numbered(4, 3).t(), torch.zeros(0, 2)):
        np.testing.assert_array_equal(checked("flip", x, dims), np.flip(x.numpy(), dims))


@pytest.mark.parametrize("value", [0, -7])
def test_pad(value: int) -> None:
    for low, high in (((0, 0), (0, 0)), ((1, 0), (0, 2)), ((0, 3), (2, 1))):
        for x in (numbered(3, 4), torch.zeros(0, 2, dtype=torch.int64)):
            want = np.pad(x.numpy(), tuple(zip(low, high, strict=True)), constant_values=value)
            np.testing.assert_array_equal(checked("pad", x, low, high, value), want)


@pytest.mark.parametrize("dim", [0, 1])
def test_cat(dim: int) -> None:
    sizes = (2, 0, 1, 3)
    tensors = tuple(numbered(*((n, 4) if dim == 0 else (4, n))) for n in sizes)
    np.testing.assert_array_equal(checked("cat", tensors, dim), np.concatenate([t.numpy() for t in tensors], dim))
    assert checked("cat", tensors[:1], dim).shape == tensors[0].shape


X = numbered(2, 3)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("reshape", (X, (5,))),
        ("permute", (X, (0, 0))),
        ("permute", (X, (0,))),
        ("broadcast_in_dim", (X, (2, 4), (0, 1))),
        ("broadcast_in_dim", (X, (2, 3), (0,))),
        ("slice", (X, (0, -1), (2, 3), (1, 1))),
        ("slice", (X, (0, 2), (2, 1), (1, 1))),
        ("slice", (X, (0, 0), (2, 4), (1, 1))),
        ("slice", (X, (0, 0), (2, 3), (1, 0))),
        ("slice", (X, (0,), (2,), (1,))),
        ("pad", (X, (0, 0), (0, -1), 0)),
        ("pad", (X, (-1, 0), (0, 0), 0)),
        ("cat", ((X, numbered(2, 4)), 0)),
        ("cat", ((X, X.double()), 0)),
        ("cat", ((X, X[0]), 0)),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))


@pytest.mark.parametrize("name", ["reshape", "permute", "broadcast_in_dim", "slice", "flip", "pad", "cat"])
def test_they_move_and_keep_zeros(name: str) -> None:
    facts = PRIMS[name].facts
    assert facts.moves
    zero = torch.zeros(2, 2)
    args: dict[str, tuple[Any, ...]] = {
        "reshape": (zero, (4,)),
        "permute": (zero, (1, 0)),
        "broadcast_in_dim": (zero, (3, 2, 2), (1, 2)),
        "slice": (zero, (0, 0), (1, 2), (1, 1)),
        "flip": (zero, (0,)),
        "pad": (zero, (1, 0), (0, 0), 0),
        "cat": ((zero, zero), 0),
    }
    assert not PRIMS[name](*args[name]).any()
    assert facts.annihilated_by == (() if name in ("pad", "cat") else (0,))
    assert facts.linear_in == {"pad": (0, 3), "cat": (0,)}.get(name, ())
