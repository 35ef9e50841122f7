"""Reads and writes through every view operator, replayed functionally, against real memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt
from smelt.autograd.trace.views import inverse, memory_order
from smelt.base.errors import Unsupported
from smelt.graph.ir.meta import meta_of
from tests.autograd.compare import check, compiled

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: x.select(1, -1),
    "slice": lambda x: x[:, 1:4:2],
    "slice_far": lambda x: x[-2:, :100],
    "transpose": lambda x: x.transpose(0, -1),
    "permute": lambda x: x.permute(2, 0, 1),
    "t": lambda x: x[0].t(),
    "view": lambda x: x.view(6, -1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze_all": lambda x: x[:1, :1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "expand": lambda x: x[:, None].expand(2, 1, 3, 4),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "split": lambda x: x.split([1, 3], 2)[1],
    "chunk": lambda x: x.chunk(2, 1)[0],
    "unbind": lambda x: x.unbind(2)[2],
    "movedim": lambda x: x.movedim(0, 2),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (12, 4), 1),
    "as_strided_by_index": lambda x: x.as_strided((3, 3), (5, 3), 2),
    "dtype": lambda x: x.view(torch.int32).view(torch.float32),
    "smaller_dtype": lambda x: x.view(torch.int16),
    "detach": lambda x: x.detach(),
    "real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(2, 3, 2, 2))),
    "chain": lambda x: x.transpose(1, 2)[:, ::2].flatten(1)[1],
    "overlapping": lambda x: x[:1].expand(2, 3, 4)[1],
}


def values() -> torch.Tensor:
    return torch.linspace(-1, 1, 24).reshape(2, 3, 4)


@pytest.mark.parametrize("name", VIEWS)
def test_read(name: str) -> None:
    check(lambda x: (VIEWS[name](x * 1) + 1).clone(), lambda: [values()])


@pytest.mark.parametrize("name", VIEWS)
def test_write(name: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 1
        before = y[0]
        VIEWS[name](y).fill_(3)
        return y, before * 2

    check(fn, lambda: [values()])


@pytest.mark.parametrize("name", sorted(set(VIEWS) - {"detach", "dtype", "smaller_dtype", "real", "overlapping"}))
def test_write_with_gradients(name: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        with torch.no_grad():
            shape = VIEWS[name](values()).shape
        part = w.expand(shape) if w.dim() == 0 else w
        view = {"split": lambda t: t[..., 1:], "chunk": lambda t: t[:, :2], "unbind": lambda t: t[..., 2]}.get(name)
        (view or VIEWS[name])(y).mul_(part)
        return y

    check(fn, lambda: [values().requires_grad_(), torch.tensor(1.5, requires_grad=True)])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.permutations(range(3)),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), min_size=0, max_size=3),
    st.integers(0, 4),
)
def test_as_strided_anywhere(order: list[int], dims: list[tuple[int, int]], offset: int) -> None:
    shape, stride = [n for n, _ in dims], [s for _, s in dims]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided(shape, stride, offset) * 2

    check(fn, lambda: [torch.arange(40.0).reshape(2, 4, 5).permute(order)])


def test_memory_outside_a_sliced_input_is_refused() -> None:
    with pytest.raises(Unsupported, match="reaches outside"):
        compiled(lambda x: x.as_strided((4,), (1,)) * 2, [torch.zeros(4, 4)[:, :2]])


def test_inverse() -> None:
    assert inverse([2, 0, 1]) == [1, 2, 0]


def test_memory_order() -> None:
    assert memory_order(meta_of(torch.empty(2, 3, 4).permute(2, 0, 1))) == [1, 2, 0]
    assert memory_order(meta_of(torch.empty(4, 4)[:, ::2])) is None


def test_results_of_an_unsafe_split_share_memory() -> None:
    x = torch.randn(4, 5, 6)
    for fn in (lambda x: torch.unsafe_split(x * 2, 2, 1), lambda x: torch.unsafe_split_with_sizes(x * 2, (1, 4), 1)):
        for got, want in zip(smelt.compile(fn, fullgraph=True)(x), fn(x), strict=True):
            assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.unsqueeze(0).expand(2, *x.shape).fill_(1.5),
        lambda x: x.unfold(1, 2, 2).clamp_(-0.2, 0.2),
        lambda x: x.as_strided((2, 2), (4, 2)).mul_(3),
    ],
)
def test_writes_by_positions_to_a_tensor_with_gaps(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def with_gaps() -> list[torch.Tensor]:
        return [torch.linspace(-1, 1, 12).reshape(3, 4).t()[::2]]

    check(lambda x: (write(x), x * 2), with_gaps)


def test_positions_in_the_gaps_of_a_tensor_are_not_its_own() -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).t()[::2]
    with pytest.raises(Unsupported, match="reaches outside"):
        compiled(lambda x: (x.as_strided((2, 2), (1, 4)).mul_(3),), [x])


def detached(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = x.detach()
    return base, base[0], base[1:]


def cast_there_and_back(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = x.detach().view(torch.int64).view(torch.float64)
    return base, base[0], base[1:]


def parts_of_a_hidden_base(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = x.detach()
    return base[0], base[1:], base[:, 0]


def detached_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = x.detach()
    second = first.detach()
    return first, second, second[0]


def history_after_a_write(views: tuple[torch.Tensor, ...], place: int) -> list[tuple[bool, bool, bool, list[bool]]]:
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    views[place].mul_(weight)
    return [(v.requires_grad, v.grad_fn is not None, v._is_view(), [v._base is each for each in views]) for v in views]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [detached, cast_there_and_back, parts_of_a_hidden_base, detached_twice])
def test_results_that_view_one_detached_tensor_share_a_later_history(
    function: Callable[..., tuple[torch.Tensor, ...]], requires_grad: bool, place: int
) -> None:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    there = compiled(function, [x.clone().requires_grad_(requires_grad)])
    theirs = history_after_a_write(function(x.clone().requires_grad_(requires_grad)), place)
    assert history_after_a_write(there(x.clone().requires_grad_(requires_grad)), place) == theirs


def test_two_tensors_at_one_address_are_two_results() -> None:
    def moved(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made, part = torch.empty(0, dtype=x.dtype), x.detach()
        made.set_(part)
        return made, part

    one, other = smelt.compile(moved, backend="aot_eager", fullgraph=True)(x := torch.ones(3))
    assert one is not other and one.data_ptr() == other.data_ptr() == x.data_ptr()
