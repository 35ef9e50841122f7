"""Views, copies that move elements, and their gradients, against eager: negative dims and bounds, sizes 0 and 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.base.errors import CompileError
from smelt.prims.decompose import decompose
from smelt.prims.rules.views import bounds
from tests.prims.aten_check import check
from tests.prims.prim_check import names
from tests.prims.test_decompose import Joint

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


SHAPES = [(3, 4), (1, 3, 1), (), (0, 2), (2, 1, 4)]


def compare(op: Any, *args: Any, **kwargs: Any) -> None:
    """Where eager takes it."""
    try:
        op(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError):
        return
    check(op, *args, **kwargs)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = f(*shape)
    for new in ([-1], list(shape), [*shape, 1], [1, -1]):
        for op in (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.view_copy.default):
            compare(op, x, new)
    compare(aten.squeeze.default, x)
    for dim in (0, -1, 1):
        compare(aten.squeeze.dim, x, dim)
        compare(aten.squeeze.dims, x, [dim])
        compare(aten.unsqueeze.default, x, dim)
        compare(aten.transpose.int, x, dim, 0)
        compare(aten.unbind.int, x, dim)
        compare(aten.select.int, x, dim, 0)
        compare(aten.select.int, x, dim, -1)
        compare(aten.flip.default, x, [dim])
        compare(aten.roll.default, x, [2], [dim])
    compare(aten.t.default, x)
    compare(aten.flatten.using_ints, x, 0, -1)
    compare(aten.permute.default, x, [-1, 0])
    compare(aten.permute.default, x, list(range(len(shape)))[::-1])
    compare(aten.expand.default, x, [2, *shape])
    compare(aten.expand.default, x, [2, *(-1 for _ in shape)])
    compare(aten.repeat.default, x, [2, *(3 for _ in shape)])
    compare(aten.repeat.default, x, [0, *(1 for _ in shape)])


@pytest.mark.parametrize(
    ("start", "stop"), [(None, None), (1, 3), (-3, -1), (-99, 2), (2, 99), (3, 1), (5, 5), (99, 100), (0, 0)]
)
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("dim", [0, -1])
def test_slices(start: int | None, stop: int | None, step: int, dim: int) -> None:
    x = f(5, 6)
    part = aten.slice.Tensor(x, dim, start, stop, step)
    check(aten.slice.Tensor, x, dim, start, stop, step)
    check(aten.slice_backward.default, torch.randn_like(part), [5, 6], dim, *bounds(x.shape[dim], start, stop), step)
    check(aten.slice_scatter.default, x, torch.randn_like(part), dim, start, stop, step)
    size = x.shape[dim]
    assert bounds(size, start, stop)[0] == min(slice(start, stop).indices(size)[0], size)
    assert len(range(*bounds(size, start, stop))) == len(range(size)[start:stop])


def test_parts() -> None:
    x = f(5, 6)
    for size in (1, 2, 5, 7):
        for dim in (0, 1, -1):
            check(aten.split.Tensor, x, size, dim)
            compare(aten.chunk.default, x, size, dim)
    check(aten.split_with_sizes.default, x, [2, 0, 3], 0)
    check(aten.split_with_sizes.default, x, [6], -1)
    for dim, start, length in ((0, 1, 3), (-1, -2, 2), (1, 6, 0)):
        check(aten.narrow.default, x, dim, start, length)
    for dim, index in ((0, -5), (1, 5), (-1, -1)):
        check(aten.select_backward.default, torch.randn_like(x.select(dim, index)), [5, 6], dim, index)
        check(aten.select_scatter.default, x, torch.randn_like(x.select(dim, index)), dim, index)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1, 1), (2, 3, 4), (0, 3)])
@pytest.mark.parametrize("offset", [-5, -2, -1, 0, 1, 3])
def test_diagonals(shape: tuple[int, ...], offset: int) -> None:
    x = f(*shape)
    for dims in ((0, 1), (1, 0), (-1, 0), (-2, -1)):
        line = x.diagonal(offset, *dims)
        check(aten.diagonal.default, x, offset, *dims)
        check(aten.diagonal_backward.default, torch.randn_like(line), list(shape), offset, *dims)
        check(aten.diagonal_scatter.default, x, torch.randn_like(line), offset, *dims)


def test_joined() -> None:
    for dim in (0, 1, -1):
        check(aten.cat.default, [f(3, 4), f(3, 4), f(3, 4).float()], dim)
        check(aten.cat.default, [f(0), f(3, 4), f(0)], dim)  # legacy empty tensors are left out
        check(aten.stack.default, [f(3, 4), f(3, 4).float()], dim)
    check(aten.cat.default, [f(0), f(0)], 0)
    check(aten.cat.default, [f(0, 4), f(3, 4)], 0)
    check(aten.stack.default, [f(), f()], -1)
    check(aten.cat.default, [torch.tensor([1]), torch.tensor([2.5])], 0)


@pytest.mark.parametrize("shift", [0, 1, -1, 3, 7, -8])
def test_rolls(shift: int) -> None:
    x = f(3, 4)
    for dim in (0, 1, -1):
        prims = check(aten.roll.default, x, [shift], [dim])
        assert ("cat" in names(prims)) == (shift % x.shape[dim] != 0)
    check(aten.roll.default, x, [shift])
    check(aten.roll.default, x, [shift, 1], [0, 1])
    check(aten.roll.default, x, [shift, 1], [1, 1])
    check(aten.roll.default, f(0, 2), [shift], [0])
    check(aten.flip.default, x, [0, -1])


@pytest.mark.parametrize("amounts", [[1, 2], [0, 0], [-1, 2], [1, 0, 2, 3], [-1, -1, 0, -2], [-3, -1], [3, -3], []])
def test_padding(amounts: list[int]) -> None:
    for x in (f(3, 4), torch.randint(0, 9, (3, 4)), f(3, 4) > 0, f(1, 4)):
        for value in (0, 2.5, True):
            compare(aten.constant_pad_nd.default, x, amounts, value)


@pytest.mark.parametrize("k", [-5, -1, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("dims", [[0, 1], [1, 0], [-1, 0], [0, 2]])
def test_quarter_turns(k: int, dims: list[int]) -> None:
    check(aten.rot90.default, f(2, 3, 4), k, dims)


def test_memory_that_only_the_operator_can_reach() -> None:
    x = f(3, 4)
    check(aten.as_strided.default, x, [2, 2], [1, 4], 1, fallback=True)
    g = Joint()
    value = g.call(aten.exp.default, g.input(x))
    part = g.call(aten.slice.Tensor, value, 0, 1, 3)
    out = g.call(aten.as_strided.default, part, [2, 2], [1, 4], 0)
    with pytest.raises(CompileError, match="only part of its memory"):
        decompose(g.done(out))
