"""A function under `torch.utils.checkpoint` that writes outside of itself does so once more in the backward."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import smelt
from smelt.base.errors import Unsupported
from smelt.capture.explain import describe
from tests.capture.core.test_breaks import marked, operators

Function = Callable[[Tensor], Tensor]
Compile = Callable[[Function], Function]


class Register(nn.Module):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))


class Bench:
    """What the functions below write to."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.buffer, self.items, self.count = torch.zeros(5), list[int](), 0
        self.norm = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True))
        self.two = nn.Sequential(*copy.deepcopy(self.norm), *copy.deepcopy(self.norm))
        self.register = Register()

    def state(self) -> list[Any]:
        state = [*self.norm.state_dict().values(), *self.two.state_dict().values(), self.register.steps]
        grads = [p.grad for p in (*self.norm.parameters(), *self.two.parameters())]
        return [self.buffer, len(self.items), self.count, *state, *grads]


def before(b: Bench, x: Tensor) -> Tensor:
    b.buffer.add_(x.detach().sum(0))
    return (x * 2).sin()


def behind(b: Bench, x: Tensor) -> Tensor:
    y = (x * 2).sin()
    b.buffer.add_(x.detach().sum(0))
    return y + 1


def between(b: Bench, x: Tensor) -> Tensor:
    b.buffer.add_(1)
    y = x.sin().cos()
    b.buffer.mul_(3)
    return y + 1


def used(b: Bench, x: Tensor) -> Tensor:
    b.buffer.add_(x.detach().sum(0))
    return (x * b.buffer.clone()).sin()


def statistics(b: Bench, x: Tensor) -> Tensor:
    return b.norm(x)


def an_attribute(b: Bench, x: Tensor) -> Tensor:
    b.count += 1
    return x.sin().cos()


def an_attribute_behind(b: Bench, x: Tensor) -> Tensor:
    y = x.sin().cos()
    b.count += 1
    return y


def a_list(b: Bench, x: Tensor) -> Tensor:
    b.items.append(1)
    return x.sin().cos()


def a_buffer_in_place(b: Bench, x: Tensor) -> Tensor:
    b.register.steps = b.register.steps + 1
    return x.sin().cos()


def an_argument(b: Bench, x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x + 1  # nothing of it is saved: as in eager there is no second time


def nothing(b: Bench, x: Tensor) -> Tensor:
    y = x.clone()
    y[1:].mul_(2)
    return y.sin()


WRITES = (
    *(before, behind, between, used, statistics),
    *(an_attribute, an_attribute_behind, a_list, a_buffer_in_place, an_argument, nothing),
)


def trained(compiled: Compile, made: Callable[[Bench], Function], times: int = 3) -> list[Any]:
    """What a few steps leave behind."""
    bench = Bench()
    run, x = compiled(made(bench)), torch.rand(4, 5, requires_grad=True)
    out: list[Any] = []
    for _ in range(times):
        y = run(x)
        out += [y.detach().clone(), *copy.deepcopy(bench.state()[:3])]
        if y.requires_grad:
            y.sum().backward()
    return [*out, x.grad, *bench.state()]


def check(made: Callable[[Bench], Function], **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = trained(lambda fn: fn, made)
        found = trained(lambda fn: smelt.compile(fn, **options), made)
    torch.testing.assert_close(found, want, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("function", WRITES)
@pytest.mark.parametrize("backend", ["smelt", "aot_eager", "eager"])
def test_it_is_written_as_often_as_in_eager(function: Any, reentrant: bool, backend: str) -> None:
    def made(b: Bench) -> Function:
        return lambda x: checkpoint(lambda y: function(b, y), x * 1, use_reentrant=reentrant).cos()

    check(made, backend=backend)


@pytest.mark.parametrize("function", WRITES)
def test_a_second_time_that_does_not_stop_early(function: Any) -> None:
    def made(b: Bench) -> Function:
        return lambda x: checkpoint(lambda y: function(b, y), x * 1, use_reentrant=False, early_stop=False).cos()

    check(made)


@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_in_turn(reentrant: bool) -> None:
    check(lambda b: lambda x: checkpoint_sequential(b.two, 2, x * 1, use_reentrant=reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_one_inside_of_another(reentrant: bool) -> None:
    def made(b: Bench) -> Function:
        def inner(x: Tensor) -> Tensor:
            return b.two(checkpoint(b.norm, x, use_reentrant=reentrant))

        return lambda x: checkpoint(inner, x.sin(), use_reentrant=reentrant).cos()

    check(made)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_whole_step(reentrant: bool) -> None:
    def made(b: Bench) -> Function:
        def step(x: Tensor) -> Tensor:
            loss = checkpoint(b.norm, x * 1, use_reentrant=reentrant).sum()
            loss.backward()
            return loss.detach()

        return step

    check(made)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_list_that_the_caller_makes(reentrant: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, list[int]]:
        seen: list[int] = []

        def inside(y: Tensor) -> Tensor:
            seen.append(1)
            return y.sin().cos()

        return checkpoint(inside, x, use_reentrant=reentrant), seen

    for call in (fn, smelt.compile(fn)):
        out, seen = call(torch.rand(4, 5, requires_grad=True))
        assert seen == [1]
        out.sum().backward()
        assert seen == [1, 1]


def test_checkpoint_that_warns_or_needs_no_gradient_stays_in_the_graph() -> None:
    bench = Bench()

    def warns(y: Tensor) -> Tensor:
        warnings.warn("again", stacklevel=1)
        return y.sin()

    def fn(x: Tensor, function: Function) -> Tensor:
        return checkpoint(function, x, use_reentrant=False)

    run = smelt.compile(fn, fullgraph=True)
    x = torch.rand(4, 5, requires_grad=True)
    with pytest.warns(UserWarning, match="again"):
        run(x, warns)
    run(x.detach(), lambda y: before(bench, y))
    with torch.no_grad():
        run(x, lambda y: statistics(bench, y))
    run(x, bench.norm.eval())


def test_the_break_has_its_reason() -> None:
    bench = Bench()
    x = torch.rand(4, 5, requires_grad=True)
    for function, what in ((before, "writes to a tensor"), (a_list, "changes an object")):
        run = smelt.compile(
            lambda x, f=function: checkpoint(lambda y: f(bench, y), x, use_reentrant=False), fullgraph=True
        )
        with pytest.raises(Unsupported, match=f"(?s)checkpoint of a function that {what}.*once more"):
            run(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_statistics_are_computed_by_compiled_code_both_times(reentrant: bool) -> None:
    bench = Bench()

    def fn(x: Tensor) -> Tensor:
        return checkpoint(bench.norm, x * 2, use_reentrant=reentrant) + 1

    run = smelt.compile(fn, backend=lambda gm, inputs: marked(gm, inputs, None, None))
    x = torch.rand(4, 5, requires_grad=True)
    run(x).sum().backward()
    out = run(x).sum()
    inside_graphs, _ = operators(out.backward)
    assert inside_graphs >= 3 and describe(run._smelt_session).graph_break_count >= 1
    assert bench.norm[1].num_batches_tracked == 4


DRAWS: dict[str, Callable[[Tensor, dict[str, Any]], Tensor]] = {
    "dropout": lambda x, how: checkpoint(lambda y: nn.functional.dropout(y.sin(), 0.5) * y, x, **how),
    "numbers beside": lambda x, how: checkpoint(lambda y: torch.rand_like(y) * y.sin(), x, **how) + torch.rand(5),
    "drawn last": lambda x, how: checkpoint(lambda y: y.sin().exp() + torch.rand_like(y), x, **how),
    "two calls": lambda x, how: (
        checkpoint(lambda y: torch.randn_like(y) * y.cos(), x, **how)
        + checkpoint(lambda y: torch.rand_like(y) * y.sin(), x, **how)
    ),
    "one in another": lambda x, how: checkpoint(
        lambda y: nested(y * 2, how).sin() + nn.functional.dropout(y), x, **how
    ),
}


def nested(x: Tensor, how: dict[str, Any]) -> Tensor:
    """A call whose random numbers are the same the second time where those around it are others, and the reverse."""
    other = not how["preserve_rng_state"]
    return checkpoint(lambda y: nn.functional.dropout(y, 0.5) * y, x, use_reentrant=False, preserve_rng_state=other)


@pytest.mark.parametrize("preserved", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_drawn_as_often_as_in_eager(name: str, reentrant: bool, preserved: bool) -> None:
    how = {"use_reentrant": reentrant, "preserve_rng_state": preserved}

    def seen(run: Function) -> list[Tensor]:
        x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        torch.manual_seed(3)
        found = []
        for _ in range(2):
            out = run(x)
            out.sum().backward()
            assert x.grad is not None
            found += [out.detach(), x.grad.clone(), torch.rand(1)]
        return found

    def fn(x: Tensor) -> Tensor:
        return DRAWS[name](x, how)

    torch.testing.assert_close(seen(smelt.compile(fn, options={"eager_rng": True})), seen(fn))
