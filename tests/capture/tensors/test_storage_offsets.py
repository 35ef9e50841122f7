"""Offsets into storages: `as_strided` and its variants, views as larger dtypes, and `storage_offset`, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

aten = torch.ops.aten
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "scatter into a copy": lambda a: torch.as_strided_scatter(a.clone(), a[0, :3] * 9, (3,), (2,), 1),
    "scatter into what is computed": lambda a: torch.as_strided_scatter(a * 1, a[0, :3] * 9, (3,), (2,), 1),
    "scatter into an argument": lambda a: a.as_strided_scatter(a[0, :3] * 9, (3,), (2,), storage_offset=5),
    "scatter from its first element": lambda a: torch.as_strided_scatter(a, a[0, :3] * 9, (3,), (2,)),
    "scatter into a part": lambda a: (a[1:] * 2)[1:].as_strided_scatter(a[0, :3] * 9, (3,), (1,), 13),
    "scatter, as an operator": lambda a: aten.as_strided_scatter(a, a[0, :3] * 9, (3,), (2,), storage_offset=5),
    "an operator": lambda a: aten.as_strided(a, (3,), (1,), 4) * 3,
    "an overload": lambda a: aten.as_strided.default(a, (3,), (1,), storage_offset=4) * 3,
    "an operator with names": lambda a: aten.as_strided_copy.default(self=a, size=(3,), stride=(1,), storage_offset=4),
    "beside a part": lambda a: (a * 2)[1:].as_strided((3,), (1,), 1),
    "beside a part, computed with": lambda a: torch.as_strided((a * 2)[1:], (3,), (1,), 1) * 3,
    "complex numbers": lambda a: torch.view_as_complex(a.view(4, 3, 2)).real * 2,
    "complex numbers, as an operator": lambda a: aten.view_as_complex(a.view(4, 3, 2)).real * 2,
    "complex numbers of a copy": lambda a: torch.view_as_complex((a * 1).view(4, 3, 2)).real * 2,
    "complex numbers of a part": lambda a: torch.view_as_complex(a.view(12, 2)[1:].view(-1)[1:-1].view(-1, 2)).real,
    "larger numbers": lambda a: a.view(torch.int64) + 1,
    "larger numbers, as an operator": lambda a: aten.view.dtype(a, torch.int64) + 1,
    "larger numbers of a copy": lambda a: (a * 1).view(torch.int64),
    "larger numbers of a copy of a part": lambda a: a[:, 2:].clone().view(torch.int64) + 1,
    "larger numbers of a part of a copy": lambda a: (a + 0).view(-1)[1:5].view(torch.int64),
    "larger numbers of a copy of what is computed": lambda a: (a * 2).view(-1)[1:5].clone().view(torch.int64),
    "larger numbers of a part of what is computed": lambda a: (a * 2).view(-1)[1:5].view(dtype=torch.int64),
    "larger numbers of smaller ones": lambda a: a.view(torch.int16).view(-1)[2:10].view(torch.int64) + 1,
}


def _seen(run: Callable[[torch.Tensor], Any], start: int, gradient: bool) -> Any:
    whole = torch.arange(40.0)
    a = whole[start : start + 24].view(4, 6).requires_grad_(gradient)
    try:
        out = run(a)
        if out.requires_grad:
            out.backward(torch.arange(float(out.numel())).view(out.shape))
    except RuntimeError as error:
        return type(error), str(error).partition("\n")[0]
    return out.tolist(), out.stride(), None if a.grad is None else a.grad.tolist()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_offsets_count_from_the_beginning_of_the_storage_as_in_eager(name: str, dynamic: bool) -> None:
    fn = PROGRAMS[name]
    compiled = smelt.compile(fn, dynamic=dynamic)
    for gradient in (False, True):
        for start in (0, 3, 2):
            assert _seen(compiled, start, gradient) == _seen(fn, start, gradient)


@pytest.mark.parametrize("layout", [(9, 1), (1, 4), (12, 2), (0, 1), (1, 1)])
def test_a_scatter_into_a_copy_keeps_the_layout(layout: tuple[int, int]) -> None:
    a, source = torch.arange(60.0).as_strided((4, 6), layout, 3), torch.ones(3)
    for fn in (
        lambda a: torch.as_strided_scatter(a, source, (3,), (2,), 4),
        lambda a: torch.as_strided_scatter(a * 2, source, (3,), (2,), 4),
    ):
        got, want = smelt.compile(fn)(a), fn(a)
        assert torch.equal(got, want) and got.stride() == want.stride()


def test_a_write_of_complex_numbers_that_eager_refuses_is_not_done() -> None:
    compiled = smelt.compile(lambda a: torch.view_as_complex(a.view(4, 3, 2)).mul_(2j))
    whole = torch.arange(40.0)
    compiled(whole[:24])
    before = whole.clone()
    with pytest.raises(RuntimeError, match="divisible by 2"):
        compiled(whole[3:27])
    assert torch.equal(whole, before)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda y: y[1],
    "column": lambda y: y[:, 1],
    "gaps": lambda y: y[1:, 1:],
    "steps": lambda y: y[1::2],
    "transposed": lambda y: y.t()[1],
    "of a view": lambda y: y[1:].t()[2],
    "part": lambda y: y.split(2)[1],
    "expanded": lambda y: y[2:3].expand(3, -1),
    "none": lambda y: y[1:1],
    "whole": lambda y: y,
}
MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "computed": lambda x: x * 2,
    "an input": lambda x: x,
    "a copy": lambda x: x.clone(),
    "a product": lambda x: x @ x.new_ones(x.shape[1], 4),
    "written": lambda x: (x * 2).add_(1),
}
INPUTS = {
    "own": lambda n: torch.rand(n, 4),
    "offset": lambda n: torch.rand(n + 2, 4)[2:],
    "transposed": lambda n: torch.rand(4, n).t(),
}


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("view", VIEWS)
def test_the_offset_of_a_view_is_that_of_eager(view: str, made: str, given: str, dynamic: bool | None) -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        part = VIEWS[view](MADE[made](x))
        return part, part.storage_offset()

    fn = smelt.compile(f, dynamic=dynamic, fullgraph=True)
    for size in (5, 7, 5):
        x = INPUTS[given](size)
        (part, offset), (want, at) = fn(x), f(x)
        torch.testing.assert_close(part, want)
        assert (type(offset), offset) == (int, at)
        assert (part.storage_offset(), part.stride()) == (at, want.stride())
        whole, expected = (torch.empty(0).set_(t.untyped_storage()) for t in (part, want))
        if given != "transposed":  # memory beside the elements that a product or a sum leaves is nobody's
            torch.testing.assert_close(whole, expected)


@pytest.mark.parametrize("where", ["inside", "after a break", "outside"])
@pytest.mark.parametrize("grad", [False, True])
def test_elements_beside_a_view_are_those_of_eager(where: str, grad: bool) -> None:
    def read(part: Tensor, at: int) -> Tensor:
        return part.as_strided((3,), (2,), at - 3)

    def f(x: Tensor) -> Any:
        part = (x * 2)[1]
        at = part.storage_offset()
        if where == "after a break":
            part.tolist()
        return (part, at) if where == "outside" else read(part.detach(), at)

    fn = smelt.compile(f)
    for _ in range(3):
        x = torch.rand(4, 3).requires_grad_(grad)
        got, want = fn(x), f(x)
        if where == "outside":
            got[0].sum().backward() if grad else None
            got, want = (read(t[0].detach(), t[1]) for t in (got, want))
        torch.testing.assert_close(got, want)


def test_a_view_is_returned_alone_if_its_offset_is_not_read() -> None:
    part = smelt.compile(lambda x: (x * 2)[1])(torch.rand(1000, 4))
    assert part.untyped_storage().nbytes() == 16


TYPES = [torch.int16, torch.int32, torch.uint8, torch.float32, torch.float64, torch.complex64]
MEMORY: dict[str, Callable[[], Tensor]] = {
    "own": lambda: torch.randn(24),
    "offset": lambda: torch.randn(24)[4:12],
    "complex": lambda: torch.randn(12, dtype=torch.complex64)[2:8],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", TYPES)
def test_elements_are_counted_in_the_type_of_the_view(
    dtype: torch.dtype, memory: str, made: bool, dynamic: bool
) -> None:
    def f(x: Tensor) -> tuple[Any, ...]:
        whole = (x * 2 if made else x).view(dtype)
        part = whole[1:]
        first = whole.as_strided((2,), (1,), whole.storage_offset())
        at = part.storage_offset()
        return first, part.as_strided((2,), (1,), at), part.as_strided((2,), (1,)), at, part

    x = MEMORY[memory]()
    for got, want in zip(smelt.compile(f, dynamic=dynamic)(x), f(x), strict=True):
        if isinstance(want, Tensor):
            assert (got.dtype, got.stride()) == (want.dtype, want.stride())
            assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
        else:
            assert got == want


VIEWED: dict[str, Callable[[Tensor], Tensor]] = {
    "steps": lambda x: x[..., ::2][0].as_strided((2,), (1,)),
    "column": lambda x: x[:, 0].as_strided((2,), (2,)),
    "inside": lambda x: x[1].as_strided((2,), (1,)),
    "computed": lambda x: (x * 3)[:, ::2].as_strided((3,), (1,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWED)
def test_elements_beside_have_no_gradient(name: str, dynamic: bool) -> None:
    """Autograd drops the gradient of what `as_strided` shows beside the elements of its argument."""
    f = smelt.compile(VIEWED[name], dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(4, 6, requires_grad=True)
        (got,), (want,) = (torch.autograd.grad(g(x).sin().sum(), x) for g in (f, VIEWED[name]))
        torch.testing.assert_close(got, want)
