"""Results that no memory holds: eager's error, at once, where compiled code would not store them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.graph.meta_rules import oversized

HUGE = 2**45


def _caught(x: Tensor) -> Tensor:
    try:
        return (x.expand(HUGE) * 2).sum()
    except RuntimeError:
        return x * 3


FORWARD: dict[str, Callable[[Tensor], Any]] = {
    "a sum": lambda x: (x.expand(HUGE) * 2).sum(),
    "a mean of a chain": lambda x: x.expand(2**20, 2**25).sin().cos().mean(1).sum(),
    "a maximum": lambda x: (x.expand(HUGE) + 1).amax(),
    "numbers": lambda x: (torch.arange(HUGE) * x).sum(),
    "a table": lambda x: (torch.ones(2**22)[:, None] * torch.ones(2**22)[None] * x).sum(),
    "a few of many": lambda x: (x.expand(HUGE) * 2)[:3],
    "unused": lambda x: ((x.expand(HUGE) * 2), x + 1)[1],
    "only its size": lambda x: x + (x.expand(HUGE) * 2).shape[0],
    "empty memory": lambda x: (torch.empty(HUGE), x + 1)[1],
    "drawn": lambda x: torch.rand(HUGE).sum() + x,
    "booleans": lambda x: (x.expand(2**47) == 2).any(),
    "a lookup": lambda x: torch.nn.functional.embedding(torch.zeros(1).long().expand(2**40), x.expand(3, 32)).sum(),
}

BACKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "a slice": lambda x: x.expand(HUGE)[:3] * 2,
    "a slice beside more": lambda x: x.expand(HUGE)[:3] * 2 + x.sin(),
    "an index": lambda x: x.expand(HUGE)[torch.tensor([1, 2])],
}


def refusal(run: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        run()
    assert type(raised.value) is RuntimeError
    return str(raised.value).split(". Error code")[0]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FORWARD)
def test_a_result_that_no_memory_holds(name: str, grad: bool) -> None:
    f = FORWARD[name]
    run = smelt.compile(f)
    for _ in range(2):
        x = torch.ones(1, requires_grad=grad)
        assert "allocate" in refusal(lambda x=x: f(x))
        assert refusal(lambda x=x: run(x)) == refusal(lambda x=x: f(x))


@pytest.mark.parametrize("name", BACKWARD)
def test_a_gradient_that_no_memory_holds(name: str) -> None:
    f = BACKWARD[name]
    run = smelt.compile(f)
    for _ in range(2):
        x = torch.ones(1, requires_grad=True)
        given, expected = run(x), f(x)
        assert torch.equal(given, expected)
        said = refusal(expected.sum().backward)
        assert "allocate" in said and refusal(given.sum().backward) == said


def test_the_program_catches_it() -> None:
    run = smelt.compile(_caught)
    for _ in range(2):
        assert torch.equal(run(torch.ones(1)), torch.full((1,), 3.0))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: (x.expand(n) * 2).sum(),
        lambda x, n: (torch.arange(n) * x).sum(),
        lambda x, n: (torch.ones(n, 2 * n) * x).sum(),
    ],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_number_that_is_huge_at_one_call(f: Callable[[Tensor, int], Tensor], dynamic: bool | None) -> None:
    """The version for any number does not serve it, and goes on to serve others."""
    run, x = smelt.compile(f, dynamic=dynamic), torch.ones(1)
    for n in (5, 7, 9):
        assert torch.equal(run(x, n), f(x, n))
    graphs = smelt.stats()["graphs"]
    assert refusal(lambda: run(x, HUGE)) == refusal(lambda: f(x, HUGE))
    assert torch.equal(run(x, 11), f(x, 11)) and smelt.stats()["graphs"] <= graphs + 1


def test_a_large_result_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager decides, and where it finds the memory all goes on; what fits is compiled."""
    monkeypatch.setattr(oversized, "ALWAYS_COMPUTED_BYTES", 0)
    monkeypatch.setattr(oversized, "most_bytes", lambda device: 4096)

    def f(x: Tensor) -> Tensor:
        return (x[:, None] * 1.625 + x).square().sum(0) - 1

    run = smelt.compile(f)
    for size, breaks in ((32, 0), (33, 1)):
        x = torch.randn(size)
        torch.testing.assert_close(run(x), f(x))
        assert smelt.stats()["breaks"] == breaks
        smelt.reset()
    with pytest.raises(RuntimeError, match="a result of 4356 bytes"):
        smelt.compile(f, fullgraph=True)(torch.randn(33))
