"""Tensors of two devices in one operator: eager's error where eager has one (tests/driverless does this with a GPU)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.graph.meta_rules import device_errors

CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, m: x + m,
    "add to it": lambda x, m: m + x,
    "what the program makes": lambda x, m: m + torch.arange(4),
    "minimum": lambda x, m: torch.minimum(x, m),
    "where": lambda x, m: torch.where(x > 0, m, m),
    "a number": lambda x, m: m + x.sum(),
    "to": lambda x, m: x.to("meta") + m,
    "multiply": lambda x, m: x * m,
}


@pytest.mark.parametrize("name", CASES)
def test_tensors_of_two_devices(name: str) -> None:
    case = CASES[name]

    def run(x: torch.Tensor, m: torch.Tensor) -> Any:
        try:
            return str(case(x, m).device)
        except RuntimeError:
            return "refused"

    for shape in ((3, 4), (1, 4), (100, 80, 4)):
        x, m = torch.rand(shape), torch.empty(shape, device="meta")
        assert smelt.compile(run)(x, m) == run(x, m)


@pytest.mark.parametrize("name", ["lu_unpack", "_assert_async", "linalg_ldl_solve", "linalg_lu_solve"])
def test_operators_whose_kernels_refuse_zeros_are_not_asked(name: str) -> None:
    """On a GPU the assertion of a kernel that fails ends the context, in the middle of a compilation."""
    func = next(iter(getattr(torch.ops.aten, name).overloads()))
    operator = getattr(getattr(torch.ops.aten, name), func)
    assert not device_errors._may_run(operator, None, [], {torch.device("cuda:0")})


@pytest.mark.gpu
def test_pivots_on_a_gpu() -> None:
    def solved(x: torch.Tensor) -> torch.Tensor:
        lu, pivots = torch.linalg.lu_factor(x)
        return torch.linalg.multi_dot(torch.lu_unpack(lu, pivots))

    x = torch.randn(5, 5, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(smelt.compile(solved)(x), x, rtol=1e-3, atol=1e-3)
