"""Reads and writes at places that tensors name, against eager: indices of each kind, of nothing, negative, masks."""

from __future__ import annotations

import pytest
import torch

from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def i(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, dtype=dtype)


def t(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


INDICES = [
    [i(3, 2)],
    [None, i(4, 2)],
    [None, None, i(5, 2, 2)],
    [i(3, 2), None, i(5, 2)],
    [i(3, 2, 1), i(4, 3)],
    [None, i(4, 2), i(5, 1)],
    [t(-1, 0, -3)],
    [i(3, 2, dtype=torch.int32), i(4, 2)],
    [i(3, 2, dtype=torch.int32)],
    [torch.tensor(1), None, torch.tensor(-2)],
    [t(), None],
]


@pytest.mark.parametrize("indices", INDICES, ids=range(len(INDICES)))
def test_index(indices: list[torch.Tensor | None]) -> None:
    x = f(3, 4, 5)
    picked = aten.index.Tensor(x, indices)
    for op in (aten.index.Tensor, aten._unsafe_index.Tensor):
        check(op, x, indices)
    check(aten.index.Tensor, (x > 0), indices)
    for values in (torch.randn_like(picked), f(), f(1), picked[..., :1]):
        check(aten.index_put.default, x, indices, values.double(), True)
    check(aten.index_put.default, x, indices, f())  # all the same, wherever several meet
    check(aten._unsafe_index_put.default, x.bfloat16(), indices, f().bfloat16())


def test_masks() -> None:
    x, mask = f(3, 4), f(3, 4) > 0
    for value in (torch.tensor(7.0, dtype=torch.float64), torch.full((1,), 7.0, dtype=torch.float64)):
        assert "where" in names(check(aten.index_put.default, x, [mask], value))
        assert "where" in names(check(aten.index_put.default, x, [mask[:, 0]], value))
        check(aten.index_put.default, x, [mask], value, True, fallback=True)
        check(aten.index_put.default, x, [None, mask[0]], value, fallback=True)
    check(aten.index_put.default, x, [mask], f(int(mask.sum())), fallback=True)
    check(aten.index.Tensor, x, [mask], fallback=True)


def test_of_nothing() -> None:
    empty = f(0, 3)
    check(aten.index.Tensor, empty, [t()])
    check(aten.index_put.default, empty, [t()], f(0, 3))
    check(aten.take.default, empty, t())
    check(aten.put.default, empty, t(), f(0))
    check(aten.masked_scatter.default, empty, empty > 0, f(2))
    check(aten.masked_scatter.default, f(2, 3), torch.zeros(2, 3, dtype=torch.bool), f(0), fallback=True)
    check(aten.index_select.default, empty, 1, t(2, 0))
    check(aten.gather.default, f(2, 3), 0, torch.zeros(0, 3, dtype=torch.int64))
    check(aten.scatter.src, f(2, 3), 0, torch.zeros(0, 3, dtype=torch.int64), f(1, 3))
    check(aten.gather.default, f(2, 3), 0, t())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_along_a_dimension(dim: int, dtype: torch.dtype) -> None:
    x = f(4, 5)
    check(aten.gather.default, x, dim, i(4, 3, 2, dtype=dtype))
    check(aten.index_select.default, x, dim, t(3, 0, 3, dtype=dtype))
    check(aten.index_select.default, x, dim, torch.tensor(2, dtype=dtype))
    source = f(3, 5) if dim == 0 else f(4, 3)
    for alpha in (1, 2.5):
        check(aten.index_add.default, x, dim, t(3, 0, 3, dtype=dtype), source, alpha=alpha)
    check(aten.index_add.default, x.long(), dim, t(3, 0, 3, dtype=dtype), source.long(), alpha=2)
    check(aten.index_copy.default, x, dim, t(3, 0, 1), source)
    check(aten.index_fill.int_Scalar, x, dim, t(3, -1), 7)
    check(aten.index_fill.int_Tensor, x, dim, t(-2), torch.tensor(7.0, dtype=torch.float64))
    check(aten.index_fill.int_Scalar, x.long(), dim, torch.tensor(2), 7)


def test_index_add_of_bools_stays() -> None:
    b = torch.ones(3, dtype=torch.bool)
    check(aten.index_add.default, b, 0, t(0, 0), b[:2], fallback=True)


def test_index_add_in_low_precision_rounds_what_alpha_scales() -> None:
    check(aten.index_add.default, f(3).bfloat16(), 0, t(0, 2), f(2).bfloat16(), alpha=1.7)


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_scatters(dim: int) -> None:
    x, index = f(4, 5), t(0, 3, 2, 1).reshape(2, 2)
    index = index if dim % 2 == 0 else index.t().contiguous()
    for src in (f(2, 2), f(3, 4)):  # only the corner that index covers is read
        check(aten.scatter.src, x, dim, index, src)
        check(aten.scatter_add.default, x, dim, index * 0 + 1, src)
        check(aten.scatter_reduce.two, x, dim, index * 0 + 1, src, "sum")
    check(aten.scatter.value, x, dim, index, 3)
    check(aten.scatter.value, x.long(), dim, index, 3)
    add = check(aten.scatter_reduce.two, x, dim, index, f(2, 2), "sum")
    assert "scatter_add" in names(add) and "scatter_reduce" not in names(add)
    for how in ({"reduce": "sum", "include_self": False}, {"reduce": "prod"}, {"reduce": "amax"}):
        assert "scatter_reduce" in names(check(aten.scatter_reduce.two, x, dim, index, f(2, 2), **how))
    bools = (x > 0, dim, index, f(2, 2) > 0)
    assert "scatter_reduce" in names(check(aten.scatter_reduce.two, *bools, reduce="sum"))


def test_without_dimensions() -> None:
    zero, x = torch.tensor(0), f()
    check(aten.gather.default, x, 0, zero)
    check(aten.gather.default, x, -1, t(0))
    check(aten.gather.default, f(3), 0, torch.tensor(1))
    check(aten.index_select.default, x, 0, zero)
    check(aten.index_select.default, f(3), 0, zero + 2)
    check(aten.scatter.src, x, 0, zero, f())
    check(aten.scatter.value, x, 0, zero, 2.0)
    check(aten.scatter_add.default, x, 0, zero, f())
    check(aten.index_add.default, x, 0, zero, f(), alpha=2)
    check(aten.index_copy.default, x, 0, zero, f())
    check(aten.index_fill.int_Scalar, x, 0, zero, 2.0)
    check(aten.take.default, x, zero)
    check(aten.put.default, x, zero, f())


def test_indices_of_all_elements() -> None:
    x = f(3, 4)
    check(aten.take.default, x, t(0, -1, 11, 5).reshape(2, 2))
    check(aten.take.default, x, i(12, 3, dtype=torch.int64).view(3, 1))
    check(aten.put.default, x, t(0, -1, 5), f(3))
    check(aten.put.default, x, t(0, -1, 0), f(3), True)
    check(aten.put.default, x, t(0, 2).view(2, 1), f(1, 2))


@pytest.mark.parametrize("available", [12, 7, 20])
def test_masked_scatter(available: int) -> None:
    x = f(3, 4)
    for mask in (f(3, 4) > 0, (f(4) > 0), torch.zeros(3, 4, dtype=torch.bool), torch.tensor(False)):
        if int(mask.expand(3, 4).sum()) <= available:
            check(aten.masked_scatter.default, x, mask, f(available))
    check(aten.masked_scatter.default, f(4), f(1, 4) > 0, f(9))


def test_too_few_elements_for_a_mask() -> None:
    x, all_of = f(3), torch.ones(3, dtype=torch.bool)
    prims = check(aten.masked_scatter.default, x, torch.tensor([True, False, True]), f(2))
    with pytest.raises(RuntimeError, match="masked_scatter"):
        prims(x, all_of, f(2), torch.tensor(0))
