"""A `torch.autograd.Function` whose result is a view of its argument, or the argument: its derivative stays its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.function_programs import differs


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -3 * grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.by, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 5 * grad


class Crossed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y.view_as(y), x.t()

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return b.t() * 2, a * 3


def _broken(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = Reversed.apply(h)
    y.detach().numpy().sum()
    return y * 2, Reversed.apply(y), y


def _of_intermediate(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = h * 2
    return k, Reversed.apply(k), Scaled.apply(k[0], 2.0), k * 3


def _written(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = h * 1
    return Doubled.apply(k), k


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "alone": lambda h: Reversed.apply(h),
    "argument": lambda h: Scaled.apply(h, 4.0),
    "then a view": lambda h: Reversed.apply(h)[0],
    "of a view": lambda h: Reversed.apply(h.t()[0]),
    "beside others": lambda h: (h, Reversed.apply(h), Reversed.apply(h)[1], h.t()),
    "twice": lambda h: Reversed.apply(Reversed.apply(h)),
    "of an intermediate": _of_intermediate,
    "crossed": lambda h: Crossed.apply(h, h * 2),
    "crossed back": lambda h: Crossed.apply(h * 3, h),
    "detached": lambda h: (Reversed.apply(h.detach()), h * 2),
    "without gradients": torch.no_grad()(lambda h: Reversed.apply(h)),
    "dirty": _written,
    "before a break": _broken,
}


@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_and_memory(name: str, leaf: bool) -> None:
    f, found = PROGRAMS[name], []
    for run in (f, smelt.compile(f)):
        for _ in range(2):
            x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            h = x if leaf else x * 1
            out = run(h)
            outs = out if isinstance(out, tuple) else (out,)
            facts = [(o.requires_grad, o.data_ptr() == h.data_ptr(), o.is_leaf, o is h, o.tolist()) for o in outs]
            total = sum(((i + 1) * o.sum() for i, o in enumerate(outs) if o.requires_grad), torch.zeros(()))
            if total.requires_grad:
                total.backward()
            found.append((facts, None if x.grad is None else x.grad.tolist()))
    assert found[0] == found[1] == found[2] == found[3]


def test_such_a_result_may_not_be_written_as_in_eager() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    y = smelt.compile(lambda t: Reversed.apply(t))(x)
    with pytest.raises(RuntimeError, match="is a view"):
        y.mul_(2)


class Both(torch.autograd.Function):
    """A result, and a view of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.t()

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 3 * a + 5 * b.t()


class Detached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_results_that_are_views_of_each_other_keep_their_derivatives(used: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> Any:
        return Both.apply(x * 1)

    found = []
    for run in (program, smelt.compile(program, fullgraph=True)):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        out = run(x)
        assert out[0].data_ptr() == out[1].data_ptr() and out[1]._is_view()
        sum((out[k] * (k + 2)).sum() for k in used).backward()
        found.append(x.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "function, form",
    [(Reversed, lambda x: Reversed.apply(x)), (Scaled, lambda x: Scaled.apply(x, 2.0)), (Detached, Detached.apply)],
)
@pytest.mark.parametrize("before", [lambda x: x, lambda x: x.t()])
def test_attributes_of_a_result(function: Any, form: Any, before: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return form(before(x))

    told: list[Any] = []
    for run in (program, smelt.compile(program, fullgraph=True)):
        x = torch.ones(2, 3, requires_grad=True)
        y = run(x)
        told.append([y._is_view(), y._base is x, y.is_leaf, y.grad_fn.name(), y.data_ptr() == x.data_ptr()])
        try:
            y.add_(1)
            told[-1] += [x.detach().sum(), y.grad_fn.name()]
        except RuntimeError as error:
            told[-1].append(str(error))
    assert told[0] == told[1] and told[0][3] == f"{function.__name__}Backward"


class KeepsAbsent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor | None, b: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return None if a is None else a * 2, None if b is None else b * 3


class FillsAbsent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a * 2, b * 3


@pytest.mark.parametrize("function", [KeepsAbsent, FillsAbsent])
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("before", [lambda x: x, lambda x: x * 5])
def test_an_absent_gradient_is_none_or_zeros_as_the_function_wants(function: Any, used: int, before: Any) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return function.apply(before(x), y)

    found = []
    for run in (program, smelt.compile(program, fullgraph=True)):
        leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
        out = run(*leaves)
        found.append(torch.autograd.grad(out[used].sum(), leaves, allow_unused=True))
    for want, got in zip(*found, strict=True):
        assert got is want or torch.equal(want, got)


class Partly(torch.autograd.Function):
    """Its backward gives no gradient for one of its arguments."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, skipped: int) -> torch.Tensor:
        ctx.skipped = skipped
        return x.sin() * y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None if ctx.skipped == 0 else grad * 2, None if ctx.skipped == 1 else grad * 3, None


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("given", [lambda t: t, lambda t: t * 1, lambda t: t.view(3, 1)])
@pytest.mark.parametrize("after", [lambda y: y, lambda y: (y.view(-1), y.detach()), lambda y: y * 2])
@pytest.mark.parametrize("create_graph", [False, True])
def test_input_without_gradient_from_backward_has_none(
    skipped: int, given: Any, after: Any, create_graph: bool
) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return after(Partly.apply(x, y, skipped))

    run = smelt.compile(program, fullgraph=True)
    for _ in range(2):
        found = []
        for each in (program, run):
            leaves = [torch.full((3,), 2.0, requires_grad=True) for _ in range(2)]
            out = each(*map(given, leaves))
            total = (out[0] if isinstance(out, tuple) else out).cos().sum()
            found.append(torch.autograd.grad(total, leaves, allow_unused=True, create_graph=create_graph))
        for want, got in zip(*found, strict=True):
            assert (want is None) is (got is None)
            torch.testing.assert_close(got, want) if want is not None else None
        assert found[0][skipped] is None


class Stopped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


def test_no_gradients_at_all_under_create_graph() -> None:
    run = smelt.compile(lambda x: Stopped.apply(x) * 3, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(run(x * 1).sum(), x, create_graph=True, allow_unused=True) == (None,)


@pytest.mark.parametrize("first", [0, 50, 80])
def test_random_functions(first: int) -> None:
    assert [text for seed in range(first, first + 24) if (text := differs(seed))] == []
