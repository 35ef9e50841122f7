"""Where eager's processor waits for a GPU to look at values, a compiled program does so before its kernels begin.

On a CPU, which is taken for a GPU here: the look itself, what depends on it, and what is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.graph.nodes import range_checks
from smelt.runtime.library import fallback

NAN = float("nan")


@pytest.fixture(autouse=True)
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements were looked at, look by look."""
    counts: list[int] = []
    look = range_checks._ends_in_range

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        counts.append(x.numel())
        return look(x, *rest)

    monkeypatch.setattr(range_checks, "_on_gpu", lambda device: True)
    monkeypatch.setattr(range_checks, "_ends_in_range", counted)
    return counts


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


DEVIATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of a number": lambda s: torch.normal(0.0, s),
    "of a tensor": lambda s: torch.normal(torch.zeros(4), s),
    "of rows": lambda s: torch.normal(torch.zeros(3, 1), s[None]),
    "of what is computed": lambda s: torch.normal(0.0, (s * 2).t().contiguous()) + 1,
    "in float64": lambda s: torch.normal(0.0, s.double()),
    "in bfloat16": lambda s: torch.normal(0.0, s.bfloat16()),
    "of nothing": lambda s: torch.normal(0.0, s[:0]),
    "unused": lambda s: (torch.normal(0.0, s), s * 2)[1],
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_deviations(compiled: Any, looked: list[int], name: str) -> None:
    function = DEVIATIONS[name]
    run, right = compiled(function), torch.tensor([0.5, 0.0, 2.0, 1.0])
    for values in ([1.0, 1, 1, -1], [NAN, 1, 1, 1], [1, -1e-30, 1, 1]):
        out = run(right)
        assert out.shape == function(right).shape and out.isfinite().all()
        looked.clear()
        wrong = torch.tensor(values)
        assert outcome(run, wrong) is outcome(function, wrong) or name == "of nothing"
        assert len(looked) == 1
    run(right)


def test_checks_asserted_by_eager_kernels_do_not_synchronize(looked: list[int]) -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x.index_put((i,), x[0]).scatter_add(0, i[:, None], x).index_add(0, i, x[: len(i)])
        y = y.index_put((i,), x[0], accumulate=True).index_put_((i,), y[i] * 3, accumulate=True)
        y.index_put((i,), x[1], accumulate=True)  # nobody uses it
        return y[i] + torch.bernoulli(x[i].sigmoid()) + torch.multinomial(x.abs() + 1, 1)[:1]

    smelt.compile(function)(torch.randn(4, 4), torch.tensor([1, 3, 1]))
    assert not looked


def test_an_error_that_the_program_catches(compiled: Any) -> None:
    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        try:
            return torch.normal(x, s) * 0 + 1
        except RuntimeError:
            return x * 0

    run, x = compiled(function), torch.randn(4)
    for deviation in (1.0, -1.0, 2.0):
        s = torch.full((4,), deviation)
        torch.testing.assert_close(run(x, s), function(x, s))


def test_a_refusal_is_no_refusal_of_a_library(compiled: Any) -> None:
    assert fallback.EXTERNS
    run = compiled(lambda s: torch.normal(0.0, s))
    run(torch.ones(3))
    with pytest.raises(RuntimeError, match="normal expects all elements of std >= 0.0"):
        run(-torch.ones(3))
    assert not smelt.stats()["second_ways"]
