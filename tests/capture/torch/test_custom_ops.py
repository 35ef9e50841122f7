"""Operators of user libraries stay in the graph through every backend, also those that write or return lists."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

import smelt
from smelt.base.errors import Unsupported

BACKENDS = ("eager", "aot_eager", "smelt")


@torch.library.custom_op("smelt_tests::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(numpy.sin(x.detach().numpy()))


@through_numpy.register_fake
def _(x):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _derivative(ctx, grad):
    return grad * ctx.saved_tensors[0].cos()


through_numpy.register_autograd(_derivative, setup_context=_save)


@torch.library.custom_op("smelt_tests::add_into", mutates_args=("out",))
def add_into(x: torch.Tensor, out: torch.Tensor, by: float = 2.0) -> None:
    out.add_(x * by)


@torch.library.custom_op("smelt_tests::add_into_both", mutates_args=("out", "more"))
def add_into_both(x: torch.Tensor, out: torch.Tensor, more: torch.Tensor | None = None) -> None:
    out.add_(x)
    if more is not None:
        more.sub_(x)


@torch.library.custom_op("smelt_tests::spread", mutates_args=())
def spread(x: torch.Tensor, n: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x * n, [x + i for i in range(n)]


@spread.register_fake
def _(x, n):
    return torch.empty_like(x), [torch.empty_like(x) for _ in range(n)]


@torch.library.custom_op("smelt_tests::show", mutates_args=())
def show(x: torch.Tensor) -> None:
    SHOWN.append(float(x.sum()))


@show.register_fake
def _(x):
    return None


SHOWN: list[float] = []
LIBRARY = torch.library.Library("smelt_tests_raw", "DEF")
LIBRARY.define("increase_(Tensor(a!) x, int by=1) -> Tensor(a!)")
LIBRARY.impl("increase_", lambda x, by=1: x.add_(by), "CPU")
LIBRARY.impl("increase_", lambda x, by=1: x, "Meta")
LIBRARY.define("all_(Tensor(a!)[] xs) -> ()")
LIBRARY.impl("all_", lambda xs: [x.neg_() for x in xs] and None, "CPU")
LIBRARY.impl("all_", lambda xs: None, "Meta")


def differentiable(x):
    return through_numpy(x * 2) + torch.ops.smelt_tests.through_numpy(x)


def writes_what_the_frame_made(x):
    out = torch.zeros_like(x)
    add_into(x, out, by=3.0)
    add_into(x, out)
    return out * 2


def writes_arguments(x, y):
    add_into_both(x + 1, y, x)
    return y * 2


def writes_but_not_what_is_none(x, y):
    add_into_both(x, y, None)
    return y * 2


def writes_a_view(x):
    out = torch.zeros(4, *x.shape)
    add_into(x, out[1])
    return out + 1


def writes_without_autograd(x):
    y = x * 2
    z = torch.ops.smelt_tests_raw.increase_(y, 3)
    return y + 1, z


def writes_a_list(x):
    a, b = x + 1, x + 2
    torch.ops.smelt_tests_raw.all_([a, b[0]])
    return a, b


def returns_a_list(x):
    first, rest = spread(x, 3)
    return first + rest[0] * rest[2]


CASES = (
    writes_what_the_frame_made,
    writes_arguments,
    writes_a_view,
    writes_without_autograd,
    writes_a_list,
    returns_a_list,
    pytest.param(
        writes_but_not_what_is_none,
        marks=pytest.mark.skipif(torch.__version__ < "2.13", reason="torch counts a write to None there"),
    ),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_like_eager(fn, backend):
    run = smelt.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        args = [torch.arange(6.0).reshape(2, 3) + i for i in range(fn.__code__.co_argcount)]
        copies = [a.clone() for a in args]
        want, got = fn(*args), run(*copies)
        for a, b in zip([want] if torch.is_tensor(want) else want, [got] if torch.is_tensor(got) else got, strict=True):
            assert torch.equal(a, b)
        assert all(map(torch.equal, args, copies))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_registered_derivative_is_used(backend):
    x, y = (torch.arange(4.0).requires_grad_() for _ in range(2))
    differentiable(x).sum().backward()
    smelt.compile(differentiable, backend=backend, fullgraph=True)(y).sum().backward()
    assert torch.allclose(x.grad, y.grad)


def test_an_operator_without_a_result_is_not_dropped():
    def fn(x):
        y = x + 1
        show(y)
        return y * 2

    with pytest.raises(Unsupported, match=r"smelt_tests\.show.*more than give tensors"):
        smelt.compile(fn, backend="eager", fullgraph=True)(torch.ones(2))
    run = smelt.compile(fn, backend="eager")
    SHOWN.clear()
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 4.0)) and torch.equal(run(torch.ones(2)), fn(torch.ones(2)))
    assert SHOWN == [4.0, 4.0, 4.0]


@torch.library.custom_op("smelt_tests::row_major", mutates_args=())
def row_major(x: torch.Tensor) -> torch.Tensor:
    assert x.is_contiguous(), x.stride()
    return x * 1


@row_major.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_gets_the_strides_that_the_program_made(backend):
    """A kernel may count on `contiguous()`, whose result is no other value."""

    def fn(x):
        return row_major(x.t().contiguous()), row_major((x * 2).t().contiguous()), row_major(x.reshape(-1).contiguous())

    for x in (torch.randn(4, 5), torch.randn(8, 10)[::2, ::2]):
        for got, want in zip(smelt.compile(fn, backend=backend, fullgraph=True)(x), fn(x), strict=True):
            torch.testing.assert_close(got, want)


@torch.library.custom_op("smelt_tests::unannounced", mutates_args=())
def unannounced(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_low = torch.library.Library("smelt_tests", "FRAGMENT")
_low.define("unannounced_too(Tensor x) -> Tensor")
_low.impl("unannounced_too", lambda x: x * 2, "CPU")


@pytest.mark.parametrize("op", [lambda x: unannounced(x), lambda x: torch.ops.smelt_tests.unannounced_too(x)])
def test_an_operator_without_a_fake_kernel_costs_its_operation(op: Callable[..., torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (op(x.sin().exp()) + 1).cos()

    smelt.reset()
    told = smelt.explain(f)(torch.ones(3))
    torch.testing.assert_close(told.result, f(torch.ones(3)))
    (reason,) = told.break_reasons
    assert told.op_count >= 4 and "has no fake kernel" in reason.title
    assert "torch.library.register_fake('smelt_tests::unannounced" in reason.hint


KERNELS = torch.library.Library("smelt_tests_inside", "DEF")
KERNELS.define("sine(Tensor x) -> Tensor")
KERNELS.impl("sine", lambda x: x.sin(), "CompositeExplicitAutograd")
KERNELS.define("both(Tensor x, Tensor[] more) -> (Tensor, Tensor)")
KERNELS.impl("both", lambda x, more: (x * more[0], more[1].exp()), "CompositeExplicitAutograd")
KERNELS.define("largest(Tensor x) -> Tensor")
KERNELS.impl("largest", lambda x: x.argmax(), "CompositeExplicitAutograd")
KERNELS.define("rest(Tensor(a) x) -> Tensor(a)")
KERNELS.impl("rest", lambda x: x[1:], "CompositeExplicitAutograd")
KERNELS.define("twice_(Tensor(a!) x) -> Tensor(a!)")
KERNELS.impl("twice_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
KERNELS.define("noted(Tensor x, Tensor(a!)? y=None) -> Tensor")
KERNELS.impl("noted", lambda x, y=None: x + 1 if y is None else x + y.fill_(2), "CompositeExplicitAutograd")
INSIDE = torch.ops.smelt_tests_inside


def _without(x):
    with torch.no_grad():
        y = INSIDE.sine(x)
    return y * x


@pytest.mark.parametrize(
    ("f", "cut"),
    [
        (lambda x: (INSIDE.sine(x * 2) * 3).sum(), True),
        (lambda x: INSIDE.sine(x), True),
        (lambda x: INSIDE.both(x, [x * 2, x])[1] + 1, True),
        (lambda x: INSIDE.sine(INSIDE.sine(x) * 2) + x.cos(), True),
        (lambda x: INSIDE.rest(x * 2) * 3, True),
        (lambda x: INSIDE.twice_(x * 2) + 1, True),
        (lambda x: INSIDE.noted(x * 2), True),
        (lambda x: INSIDE.noted(x * 2, torch.empty(5)), True),
        (lambda x: INSIDE.sine(x.detach()) * x, False),
        (lambda x: x * INSIDE.largest(x), False),
        (_without, False),
    ],
)
def test_an_operator_that_is_differentiated_through_what_it_calls(f: Callable[..., torch.Tensor], cut: bool) -> None:
    """Autograd has no kernel for it: it runs in eager where gradients flow through it, between two compiled parts."""
    run = smelt.compile(f, fullgraph=True)
    for _ in range(2):
        x = torch.linspace(0.1, 1, 5).requires_grad_()
        y = x.detach().clone().requires_grad_()
        result, expected = run(x), f(y)
        torch.testing.assert_close(result, expected)
        result.sum().backward(), expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        torch.testing.assert_close(run(x.detach()), f(x.detach()))
    in_eager = any("smelt_tests_inside" in name for name in smelt.stats()["extern_ops"])
    assert in_eager or not cut


VIEWS = torch.library.Library("smelt_tests_views", "DEF")
for _name, _schema, _kernel in (
    ("of_both", "(Tensor(a) x, Tensor(b) y) -> (Tensor(a), Tensor(b))", lambda x, y: (x[1:], y[..., :2])),
    ("and_new", "(Tensor(a) x, Tensor y) -> (Tensor(a), Tensor)", lambda x, y: (x[1:], y * 2)),
    ("of_second", "(Tensor x, Tensor(a) y) -> Tensor(a)", lambda x, y: y[1:]),
    ("of_named", "(Tensor x, *, Tensor(a) y) -> Tensor(a)", lambda x, y: y[1:]),
    ("by_index", "(Tensor(a) x, Tensor i) -> Tensor(a)", lambda x, i: x[int(i)]),
    ("of_lists", "(Tensor(a)[] xs) -> Tensor(a)", lambda xs: xs[-1][1:]),
    ("alone", "(Tensor(a) x, int n) -> Tensor(a)", lambda x, n: x[n:]),
):
    VIEWS.define(_name + _schema)
    VIEWS.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"smelt_tests_views::{_name}", _kernel if _name != "by_index" else lambda x, i: x[0])
LOOK = torch.ops.smelt_tests_views


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: LOOK.of_both(x, y),
        lambda x, y: LOOK.of_both(x * 2, y),
        lambda x, y: [v.add_(1) for v in LOOK.of_both(x * 2, y)],
        lambda x, y: LOOK.and_new(x * 2, y),
        lambda x, y: LOOK.and_new(y, x)[0].mul_(3),
        lambda x, y: LOOK.of_second(x, y) * 2,
        lambda x, y: LOOK.of_second(x, y * 2).mul_(3),
        lambda x, y: LOOK.of_second(x, y),
        lambda x, y: LOOK.of_named(x, y=y),
        lambda x, y: LOOK.by_index(x, torch.tensor(2)).mul_(3),
        lambda x, y: LOOK.by_index(x * 2, (x.sum() * 0 + 1).long()),
        lambda x, y: LOOK.of_lists([x * 2, y]).add_(1),
        lambda x, y: LOOK.alone(x * 2, 1).add_(1),
        lambda x, y: (LOOK.alone(x, 2), LOOK.alone(y, n=1)),
    ],
)
def test_views_that_an_operator_returns_are_of_the_arguments_in_its_schema(f: Callable[..., object]) -> None:
    def seen(run: Callable[..., object]) -> list[object]:
        x, y = torch.arange(12.0).view(3, 4), -torch.arange(12.0).view(3, 4)
        first, second = run(x, y), run(x + 0.5, y)
        out = [*(first if isinstance(first, (tuple, list)) else [first])]
        shared = [t.untyped_storage().data_ptr() == s.untyped_storage().data_ptr() for t in out for s in (x, y)]
        return [
            shared,
            [(t.tolist(), t.stride()) for t in (*out, x, y)],
            torch.utils._pytree.tree_leaves(second)[0].tolist(),
        ]

    assert seen(smelt.compile(f)) == seen(f)
