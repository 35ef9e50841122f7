"""Values that a trace follows: constants of the program, what is computed from them, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt.graph.meta_rules.constant_values import MAX_TRACKED_ELEMENTS, known_value
from smelt.graph.trace.trace import DataDependent, TraceMode, TraceTensor, trace_like

FOLLOWED: dict[str, Callable[[], torch.Tensor]] = {
    "a number": lambda: torch.tensor(3),
    "arithmetic": lambda: torch.sqrt(torch.tensor(6, dtype=torch.float) * 2),
    "a ratio of numbers": lambda: torch.div(17, 4, rounding_mode="trunc"),
    "an item": lambda: torch.tensor([[4, 5], [6, 7]])[1, 0],
    "a column": lambda: torch.tensor([[4, 5], [6, 7]]).t()[1],
    "a cast": lambda: torch.tensor([1.5, 2.5]).to(torch.int64).sum(),
    "filled": lambda: torch.full((2,), 3.0) + torch.ones(2),
    "a comparison": lambda: torch.tensor(2) > torch.tensor(1.5),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_values_follow_from_constants(name: str) -> None:
    make = FOLLOWED[name]
    with TraceMode():
        traced = make()
    assert type(traced) is TraceTensor
    found = known_value(traced)
    assert found is not None and found.dtype == make().dtype and torch.equal(found, make())
    assert traced.tolist() == make().tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor(2.0) + x.sum(),
        lambda x: torch.rand(()),
        lambda x: torch.empty(()),
        lambda x: torch.zeros(MAX_TRACKED_ELEMENTS + 1)[0],
        lambda x: torch.zeros(()).add_(1),
        lambda x: torch.zeros(2).index_fill_(0, torch.tensor([0]), 1)[0],
    ],
)
def test_other_values_are_not_known(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with TraceMode():
        traced = make(trace_like(torch.ones(3)))
    assert type(traced) is TraceTensor and known_value(traced) is None


def test_a_write_through_a_view_is_noticed() -> None:
    with TraceMode():
        sizes = torch.tensor([1, 2])
        first = sizes[0]
        assert first.item() == 1
        sizes[:1].fill_(5)
        with pytest.raises(DataDependent):
            first.item()


def test_the_value_is_that_of_the_time_of_the_call() -> None:
    array = torch.zeros(1)
    with TraceMode():
        traced = torch.ops.aten.lift_fresh(array)
    array.fill_(7)
    assert traced.item() == 0
