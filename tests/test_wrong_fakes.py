"""An operator of a library whose fake kernel tells another result than the operator gives: an error that names both."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.runtime.library.fallback import WrongFake

library = torch.library.Library("smelt_wrong_fakes", "DEF")


def operator(name: str, real: Callable[..., Any], fake: Callable[..., Any], results: str = "Tensor") -> Any:
    library.define(f"{name}(Tensor x) -> {results}")
    library.impl(name, real, "CPU")
    torch.library.register_fake(f"smelt_wrong_fakes::{name}", fake, lib=library)
    return getattr(torch.ops.smelt_wrong_fakes, name)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


OPERATORS = {
    "shape": (operator("shape", torch.sin, lambda x: x.new_empty(x.shape[0] + 1, 4)), "says float32[4, 4]"),
    "elements": (operator("elements", torch.sin, lambda x: x.new_empty(x.shape[0], 1)), "says float32[3, 1]"),
    "dimensions": (operator("dimensions", torch.sin, lambda x: x.new_empty(x.shape[0])), "says float32[3]"),
    "dtype": (
        operator("dtype", torch.sin, lambda x: torch.empty_like(x, dtype=torch.float64)),
        "says float64[3, 4]",
    ),
    "second": (
        operator("second", pair, lambda x: (torch.empty_like(x), x.new_empty(x.shape[0])), "(Tensor, Tensor)"),
        "result 1 is float32[3, 4], and the fake kernel (register_fake) says float32[3]",
    ),
}
AFTER: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda y: y,
    "used": lambda y: y * 2 + 1 if isinstance(y, Tensor) else (y[0] * 2, y[1] + 1),
    "summed": lambda y: y.sum() if isinstance(y, Tensor) else y[0].sum() + y[1].sum(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_told(name: str, after: str, dynamic: bool) -> None:
    run, said = OPERATORS[name]
    f = smelt.compile(lambda x: AFTER[after](run(x.cos())), dynamic=dynamic)
    with pytest.raises(WrongFake, match=rf"smelt_wrong_fakes.{name}.default(.|\n)*{re.escape(said)}"):
        f(torch.rand(3, 4))


honest = operator("honest", lambda x: x.t().contiguous().t(), torch.empty_like)


def test_other_strides_are_laid_out_as_told() -> None:
    for size in (3, 5, 0, 1):
        x = torch.rand(size, 4)
        torch.testing.assert_close(smelt.compile(lambda x: honest(x.cos()) * 2)(x), x.cos() * 2)
