"""Where in its memory a view of what the graph makes begins is eager's number, and the whole lies around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

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
def test_it_is_eager_s_number(view: str, made: str, given: str, dynamic: bool | None) -> None:
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
def test_elements_beside_are_eager_s(where: str, grad: bool) -> None:
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


def test_who_does_not_ask_keeps_no_more_than_the_part() -> None:
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
