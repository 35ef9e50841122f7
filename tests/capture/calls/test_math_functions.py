"""Functions of `math` on numbers that change from call to call, wherever the program keeps them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from tests.capture.harness import compiled

X = torch.arange(6.0).reshape(2, 3)


def _attribute():
    kept = SimpleNamespace(n=0, s=1.0)

    def fn(x):
        kept.n += 1
        kept.s *= 0.5
        return x * kept.n + kept.s

    return fn


def _items():
    kept, scales = {"step": 0}, [4.0]

    def fn(x):
        kept["step"] += 1
        scales[0] /= 2
        bias = 1 - 0.9 ** kept["step"]
        return x / bias * math.sqrt(1 - 0.99 ** kept["step"]) + scales[0]

    return fn


def _closure():
    n, s = 0, 8.0

    def fn(x):
        nonlocal n, s
        n, s = n + 1, math.sqrt(s)
        return x + n * s

    return fn


class _Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.rate = 0, 0.5

    def forward(self, x):
        self.calls += 1
        self.rate *= 0.9
        return x * self.rate + self.calls


@pytest.mark.parametrize("make", [_attribute, _items, _closure, lambda: (lambda m: lambda x: m(x))(_Counter())])
def test_a_counter_and_a_rate_settle_after_two_recompilations(make):
    eager, fn = make(), compiled(make(), fullgraph=True)
    for _ in range(8):
        torch.testing.assert_close(fn(X), eager(X))
    assert [len(site.versions) for site in fn._smelt_session.sites.values()] == [3]


def test_the_root_of_a_number_that_becomes_negative_raises_as_in_eager():
    kept = SimpleNamespace(s=4.0)
    fn = compiled(lambda x: x * math.sqrt(kept.s))
    for value in (4.0, 9.0, 2.0):
        kept.s = value
        assert torch.equal(fn(X), X * math.sqrt(value))
    kept.s = -1.0
    with pytest.raises(ValueError, match="math domain error|nonnegative"):
        fn(X)
