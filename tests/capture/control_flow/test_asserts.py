"""`assert` and `if ...: raise` on tensors' values: one graph, which checks, and eager's own error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.capture.harness import compiled


def asserts(x: Any) -> Any:
    y = x * 2
    if not (y > 0).all():  # as pytest leaves alone what it finds
        raise AssertionError("not positive")
    return y.sqrt()


def raises(x: Any) -> Any:
    if torch.isnan(x).any() or x.sum() > 99:
        raise ValueError(f"unusable: {float(x.max())}")
    return x + 1


def raises_at_the_end(x: Any) -> Any:
    y = x.relu()
    if not (x > 0).all():
        raise KeyError(x.shape)
    return y.log()


def caught(x: Any) -> Any:
    try:
        if (x < 0).any():
            raise ValueError("negative")
        y = x.sqrt()
    except ValueError:
        y = x.abs()
    return y * 2


def twice(x: Any) -> Any:
    return asserts(x) + raises(x)


GOOD = torch.tensor([1.0, 2.0, 3.0])
BAD = (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([100.0, 2.0, 3.0]), torch.tensor([float("nan"), 1.0, 1.0]))


def outcome(fn: Any, x: Any) -> Any:
    return outcome_of(fn, x.clone())


def outcome_of(fn: Any, x: Any) -> Any:
    try:
        return fn(x)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("fn", [asserts, raises, raises_at_the_end, caught, twice], ids=lambda fn: fn.__name__)
def test_one_graph_and_eagers_error(fn: Any, backend: str) -> None:
    run = smelt.compile(fn, backend=backend, fullgraph=True)
    for x in (GOOD, *BAD, GOOD):
        want, got = outcome(fn, x), outcome(run, x)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want, equal_nan=True)
        else:
            assert got == want


def draws(x: Any) -> Any:
    return asserts(F.dropout(x, 0.5) + x)


def writes(x: Any) -> Any:
    x.add_(1)
    return asserts(x)


@pytest.mark.parametrize("fn", [draws, writes], ids=lambda fn: fn.__name__)
def test_a_graph_that_cannot_begin_again_ends_at_the_branch(fn: Any) -> None:
    """Else nobody could find the program's own error, after random numbers were drawn or an argument was written."""
    run = smelt.compile(fn, backend="eager")
    for x in (GOOD, BAD[0], GOOD):
        here, there = x.clone(), x.clone()
        torch.manual_seed(5)
        want = outcome_of(fn, here)
        torch.manual_seed(5)
        got = outcome_of(run, there)
        assert type(got) is type(want) and (torch.equal(got, want) if isinstance(got, torch.Tensor) else got == want)
        assert torch.equal(here, there)


def test_effects_before_a_raised_error_are_kept() -> None:
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        seen.append("called")
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

    run = compiled(fn)
    run(GOOD)
    with pytest.raises(ValueError, match="negative"):
        run(BAD[0])
    assert seen == ["called", "called"]


def test_functions_of_torch_that_raise_or_call_the_program() -> None:
    def fn(x: Any, var: Any, distance: Any) -> Any:
        return F.gaussian_nll_loss(x, x + 1, var), F.triplet_margin_with_distance_loss(
            x[None], x[None] + 1, x[None] * 2, distance_function=distance
        )

    run, distance = compiled(fn, fullgraph=True), torch.nn.PairwiseDistance()
    for got, want in zip(run(GOOD, GOOD, distance), fn(GOOD, GOOD, distance), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
    with pytest.raises(ValueError, match="negative"):
        run(GOOD, -GOOD, distance)


def test_random_numbers_that_a_failing_call_has_drawn_are_gone() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            torch.nn.functional.dropout(x, 0.5)  # draws, and cannot divide whole numbers in place
        except RuntimeError:
            pass
        return torch.rand(3)

    for fn in (program, compiled(program)):
        torch.manual_seed(0)
        first, state = fn(torch.arange(3)), torch.get_rng_state()
        if fn is program:
            want = first, state
    assert torch.equal(first, want[0]) and torch.equal(state, want[1])
