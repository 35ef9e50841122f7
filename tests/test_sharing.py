"""What a result shares memory with, as in eager: views of another type, constants, copies; held over later calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt

TARGETS = ["cpp", "triton"] if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available() else ["cpp"]
PAIRS = [
    (torch.float32, torch.int32),
    (torch.float32, torch.float32),
    (torch.float32, torch.int64),
    (torch.float64, torch.int32),
    (torch.bfloat16, torch.int16),
    (torch.bool, torch.uint8),
    (torch.int64, torch.float64),
]


def compiled(f: Callable[..., Any], target: str = "cpp", **options: Any) -> Any:
    return smelt.compile(f, options={"target": target} if target == "triton" else None, **options)


def filled(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-5, 6, tuple(shape), generator=generator)
    return values > 0 if dtype is torch.bool else values.to(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "other"), PAIRS)
def test_result_of_another_type_is_not_overwritten_by_later_calls(
    dtype: torch.dtype, other: torch.dtype, target: str
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x | x if dtype is torch.bool else x * 2).view(other)

    c = compiled(f, target)
    given = [filled((3, 4), dtype, seed) for seed in range(3)]
    held = [c(x) for x in given]
    for x, out in zip(given, held, strict=True):
        assert torch.equal(out.view(dtype), f(x).view(dtype)) and out.dtype is other


@pytest.mark.parametrize("shape", [(0,), (1,), (33, 33), (3, 5, 7), (1 << 14,)])
def test_bits_read_next_to_other_intermediates(shape: tuple[int, ...]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2 + 1
        bits = y.view(torch.int32)
        z = (x - 3).cumsum(0)
        sign = bits < 0
        w = z.view(torch.int32) ^ bits
        return sign, (w & 7).sum(), torch.where(sign, z, -z), (z.exp() * sign).sum()

    c, x = compiled(f), filled(shape, torch.float32)
    for _ in range(2):
        for a, b in zip(c(x), f(x), strict=True):
            torch.testing.assert_close(a, b)


def test_views_of_results_of_a_library() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = torch.sort(x * 2)
        return values.view(torch.int32), places.view(torch.int32) + 1, torch.view_as_complex(values)

    c = compiled(f)
    given = [torch.randn(4, 2) for _ in range(3)]
    held = [c(x) for x in given]
    for x, out in zip(given, held, strict=True):
        for a, b in zip(out, f(x), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("grad", [False, True])
def test_view_of_another_type_beside_gradients(grad: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin() * 2
        return y.exp().sum(), y.detach().view(torch.int32)

    c = compiled(f)
    given = [torch.randn(8, requires_grad=grad) for _ in range(3)]
    held = [c(x) for x in given]
    for x, (loss, bits) in zip(given, held, strict=True):
        assert torch.allclose(bits.view(torch.float32), (x.sin() * 2).detach())
        if grad:
            (expected,) = torch.autograd.grad(f(x)[0], x)
            loss.backward()
            torch.testing.assert_close(x.grad, expected)


COPIES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.clone(),
    lambda x: x * 1,
    lambda x: torch.cat([x]),
    lambda x: x.to(x.dtype, copy=True),
    lambda x: x + 0 * 0,
    lambda x: torch.empty_like(x).copy_(x),
]


@pytest.mark.parametrize("other", [torch.int32, torch.float32, torch.int16])
@pytest.mark.parametrize("copy", range(len(COPIES)))
def test_copies_stay_copies_when_their_source_is_written(copy: int, other: torch.dtype) -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        z = COPIES[copy](x)
        x.zero_()
        return z.view(other)

    x, y = torch.ones(4), torch.ones(4)
    assert torch.equal(compiled(inside)(x), inside(y)) and torch.equal(x, y)
    x = torch.ones(4)
    out = compiled(lambda x: COPIES[copy](x).view(other))(x)
    out.zero_()
    assert torch.equal(x, torch.ones(4))


VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.unflatten(-1, (-1, 1)),
    lambda x: x[None],
    lambda x: x.view(2, 2, -1).transpose(0, 1),
    lambda x: x[1:, None].expand(-1, 3),
    lambda x: x[::3].view(1, -1).clone(),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("other", [torch.int32, torch.uint8])
@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_a_copy_of_a_view_of_another_type_of_a_view_is_a_copy(view: int, other: torch.dtype, target: str) -> None:
    """The library that makes the view is handed the input's memory by strides, so that its result lies there."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bits = VIEWS[view](x)[..., None].view(other)
        return bits.clone(), torch.empty_like(bits).copy_(bits)

    given = [filled((12,), torch.int64, seed) for seed in range(2)]
    c = compiled(f, target)
    held = [c(x) for x in given]
    kept = [x.clone() for x in given]
    for x, results in zip(given, held, strict=True):
        for out, expected in zip(results, f(x), strict=True):
            assert torch.equal(out, expected) and out.stride() == expected.stride()
            out.zero_()
    assert all(map(torch.equal, given, kept))
    a, b = held[0]
    assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def test_reads_through_a_view_come_before_later_writes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x.view(torch.int32) * 2
        x[0] = 9.0
        bits = x.view(torch.int32)
        x.mul_(2)
        return z.t(), bits + 1

    x, y = torch.ones(2, 2), torch.ones(2, 2)
    for a, b in zip(compiled(f)(x), f(y), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(x, y)


LITERALS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.tensor([1.0, 2.0]),
    lambda x: torch.as_tensor([1.0, 2.0]),
    lambda x: x.new_tensor([1.0, 2.0]),
    lambda x: torch.tensor([1.0, 2.0]).clone(),
    lambda x: torch.tensor([1.0, 2.0]).double(),
    lambda x: torch.tensor([1.0, 2.0]) * 1,
    lambda x: torch.tensor([[1.0, 2.0]])[0],
    lambda x: torch.tensor([1.0, 2.0]).view(torch.int32),
    lambda x: torch.tensor(3.0),
    lambda x: torch.zeros(2),
    lambda x: torch.eye(2),
]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("literal", range(len(LITERALS)))
def test_literals_are_new_at_each_call(literal: int, beside: bool) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        made = LITERALS[literal](x)
        return [made, made + 1, LITERALS[literal](x)] if beside else [made]

    c, x = compiled(f), torch.ones(2)
    for _ in range(3):
        out, expected = c(x), f(x)
        for a, b in zip(out, expected, strict=True):
            assert torch.equal(a, b) and a.dtype is b.dtype
        for a in out:
            a += 5


def test_tensor_literal_kept_by_a_call_is_not_shared() -> None:
    class Recurrent(torch.nn.Module):
        hidden: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.hidden is None:
                self.hidden = torch.tensor([0.0, 0.0])
            return x + self.hidden

    model = Recurrent()
    c = compiled(model)
    for _ in range(3):
        model.hidden = None
        c(torch.ones(2))
        assert model.hidden is not None
        model.hidden.add_(1)
        assert c(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_literal_that_the_caller_writes_does_not_change_gradients() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.tensor([1.0, 0.0])
        return (x * mask).sum(), mask

    c = compiled(f)
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        loss, mask = c(x)
        loss.backward()
        assert x.grad is not None and x.grad.tolist() == [1.0, 0.0]
        mask.detach().fill_(100.0)
        x.grad.fill_(7.0)


def test_operators_that_return_views_of_their_arguments() -> None:
    with torch.library._scoped_library("smelt_sharing", "FRAGMENT") as library:
        library.define("bits(Tensor(a) x) -> Tensor(a)")
        library.define("handed_back(Tensor x) -> Tensor")
        for key in ("CPU", "Meta"):
            library.impl("bits", lambda x: x.view(torch.int32), key)
        library.impl("handed_back", lambda x: x, "CPU")
        library.impl("handed_back", lambda x: torch.empty_like(x), "Meta")
        ops = torch.ops.smelt_sharing

        def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x * 2
            shown, same = ops.bits(y), ops.handed_back(x + 1)
            return shown, same, (y * 3 + 1).cumsum(0) + (shown > 0)

        c = compiled(f)
        given = [torch.randn(64) for _ in range(3)]
        held = [c(x) for x in given]
        for x, out in zip(given, held, strict=True):
            for a, b in zip(out, f(x), strict=True):
                torch.testing.assert_close(a, b)
        x = torch.ones(4)
        compiled(lambda x: ops.handed_back(x) * 1)(x).zero_()
        assert torch.equal(x, torch.ones(4))


def test_an_operator_that_reads_what_it_writes_through_another_argument() -> None:
    @torch.library.custom_op("smelt_sharing::reversed_into", mutates_args=("to",))
    def reversed_into(source: torch.Tensor, to: torch.Tensor) -> None:
        for k in range(len(source)):
            to[len(source) - 1 - k] = source[k]

    def same(x: torch.Tensor) -> torch.Tensor:
        reversed_into(x, x)
        return x * 2

    def overlapping(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        reversed_into(y[:3], y[1:])
        return y * 2

    for f in (same, overlapping):
        c = compiled(f)
        for _ in range(2):
            x, y = torch.arange(4.0), torch.arange(4.0)
            assert torch.equal(c(x), f(y)) and torch.equal(x, y)


@pytest.mark.parametrize("shape", [(1, 4, 2, 3), (2, 4, 1, 1), (1, 2, 3)])
def test_shuffled_channels_are_new_memory(shape: tuple[int, ...]) -> None:
    """Also where none moves: the operator is a recipe of views, but a kernel on a CPU."""

    def f(x: torch.Tensor, groups: int) -> torch.Tensor:
        return torch.native_channel_shuffle(x, groups)

    x = torch.rand(shape)
    for groups in {1, 2, shape[1]}:
        want, got = f(x, groups), smelt.compile(f)(x, groups)
        assert torch.equal(got, want) and got.stride() == want.stride()
        assert got.data_ptr() != x.data_ptr() and not got._is_view()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((0, 3), (7, 2)), ((3, 0), (0, 0)), ((2, 0, 3), (30, 7, 2)), ((0, 1, 2), (5, 0, 0)), ((1, 3), (9, 2))],
)
def test_tensors_like_one_without_elements_have_its_strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        made = [torch.zeros_like(x), torch.empty_like(x), torch.ones_like(x, dtype=torch.int64), torch.rand_like(x)]
        made += [torch.full_like(x, 2), torch.zeros_like(x, memory_format=torch.contiguous_format), x.clone(), x + 1]
        return [*made, x.new_zeros(x.shape), x.new_empty_strided(shape, stride), x.to(torch.float64), x.contiguous()]

    x = torch.empty_strided(shape, stride)
    got = smelt.compile(f)(x)
    assert [y.stride() for y in got] == [y.stride() for y in f(x)]


@pytest.mark.parametrize(
    "views",
    [
        lambda x: (x.view(-1), x[0], x.t(), x.detach(), x.expand(1, 2, 3), x.view_as(x), x.unfold(1, 2, 1)),
        lambda x: (y := x * 2, y.view(-1), y[0], y.t(), y.real),
        lambda x: (x * 2, x.contiguous(), x.float(), x.reshape(2, 3), x.squeeze(), x.clone()),
    ],
    ids=["of an argument", "of a result", "of none"],
)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_results_record_their_bases_if_they_are_views(views, needs_gradient):
    def told(f):
        x = torch.arange(6.0).view(2, 3).clone().requires_grad_(needs_gradient)
        found = f(x)
        known = [x, *found]
        bases = [next((k for k, one in enumerate(known) if one is r._base), None) for r in found]
        return [(r._is_view(), r.is_leaf, r is x, base) for r, base in zip(found, bases, strict=True)]

    assert told(smelt.compile(views)) == told(views)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.expand(2, *x.shape).conj(),
        lambda x: x.conj().expand(2, *x.shape),
        lambda x: x.expand(2, *x.shape).conj().imag,
        lambda x: torch._neg_view(x.expand(2, *x.shape)),
        lambda x: torch._neg_view(x.unfold(0, 2, 1)),
        lambda x: torch._neg_view(torch._neg_view(x.expand(2, *x.shape))),
    ],
)
def test_writes_to_lazy_views_of_memory_that_is_shown_twice(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What the memory gets is not the value, but its conjugate or negative."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        shown = view(x)
        shown[0] = 3
        return shown.resolve_conj().resolve_neg()

    mine = torch.randn(4, 2, dtype=torch.complex64)
    other = mine.clone()
    assert torch.equal(fn(mine), smelt.compile(fn)(other)) and torch.equal(mine, other)
