"""smelt/bench/randomness.py"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from smelt.bench.accuracy import default_dtype
from smelt.bench.randomness import SingleDraws, seed_everything

DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(5),
    "randn_like": lambda: torch.randn_like(torch.ones(5)),
    "uniform": lambda: torch.empty(5).uniform_(-1, 3),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "dropout": lambda: F.dropout(torch.ones(9), 0.5),
    "randperm": lambda: torch.randperm(7),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 4),
}


@pytest.mark.parametrize("name", list(DRAWS))
def test_float64_follows_float32(name: str) -> None:
    seed_everything(3)
    single = DRAWS[name]()
    seed_everything(3)
    with default_dtype(torch.float64), SingleDraws():
        double = DRAWS[name]()
    assert torch.equal(single.double(), double.double())
    assert double.dtype == (torch.float64 if single.is_floating_point() else single.dtype)
    assert torch.get_default_dtype() == torch.float32


def test_numpy_is_seeded_too() -> None:
    seed_everything(1)
    first = np.random.rand()
    seed_everything(1)
    assert np.random.rand() == first
