"""Operators on lists are those of each element, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.rules import elementwise, lists
from tests.prims.aten_check import check

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.1


def xs() -> list[torch.Tensor]:
    return [f(2, 3), f(), f(0, 2), f(4).float()]


def op(name: str, overload: str) -> Any:
    packet = getattr(aten, f"_foreach_{name}", None)  # 2.11 has no `_foreach_clone`
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else None


@pytest.mark.parametrize("name", [n for n in (*elementwise.UNARY, "frac") if hasattr(aten, f"_foreach_{n}")])
def test_of_one_list(name: str) -> None:
    values = [x + 1 if name == "acosh" else x * 0.8 for x in xs()]
    check(op(name, "default"), values)


@pytest.mark.parametrize("name", lists.BINARY)
def test_with_numbers_and_lists(name: str) -> None:
    check(op(name, "List"), xs(), [x + 0.5 for x in xs()])
    check(op(name, "Scalar"), xs(), 0.7)
    check(op(name, "ScalarList"), xs(), [0.7, 2.0, 1.0, -0.5])
    for overload in ("List", "Scalar", "ScalarList", "Tensor"):
        known = op(name, overload)
        assert known is None or known in DECOMPOSITIONS
    if op(name, "Tensor") is not None:
        check(op(name, "Tensor"), xs(), torch.tensor(0.7, dtype=torch.float64))
    whole = [torch.tensor([3, -4]), torch.tensor([[7]])]
    check(op(name, "Scalar"), whole, 2)
    check(op(name, "List"), whole, [torch.tensor([1, 2]), torch.tensor([[3]])])
    low = [x.bfloat16() for x in xs()]
    check(op(name, "Scalar"), low, 0.7, scale=2.0)


@pytest.mark.parametrize("alpha", [1, 2.5])
@pytest.mark.parametrize("name", ["add", "sub"])
def test_factors(name: str, alpha: float) -> None:
    check(op(name, "List"), xs(), [x + 0.5 for x in xs()], alpha=alpha)


def test_bools_stay() -> None:
    bools = [torch.tensor([True, False])]
    check(op("mul", "List"), bools, bools, fallback=True)


def test_powers() -> None:
    check(op("pow", "List"), xs(), [x * 2 for x in xs()])
    check(op("pow", "Scalar"), xs(), 2.5)
    check(op("pow", "ScalarList"), xs(), [2.0, 0.5, 1.0, -1.0])
    check(op("pow", "ScalarAndTensor"), 2.0, xs())


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_products_and_quotients_added(name: str) -> None:
    lists = xs(), xs(), [x + 0.5 for x in xs()]
    check(op(name, "Scalar"), *lists, 0.5)
    check(op(name, "Scalar"), *lists)
    check(op(name, "ScalarList"), *lists, [0.5, 1.0, 2.0, -1.5])
    check(op(name, "Tensor"), *lists, torch.tensor([0.5, 1.0, 2.0, -1.5]))


def test_interpolations() -> None:
    check(op("lerp", "Scalar"), xs(), [x * 2 for x in xs()], 0.3)
    check(op("lerp", "List"), xs(), [x * 2 for x in xs()], [x * 0.5 for x in xs()])
    if op("lerp", "ScalarList") is not None:
        check(op("lerp", "ScalarList"), xs(), [x * 2 for x in xs()], [0.1, 0.5, 0.7, 1.0])


def test_whole_tensors() -> None:
    full = [f(2, 3), f(1), f()]
    check(op("max", "default"), full)
    for order in (2, 1, 0.5, float("inf")):
        check(op("norm", "Scalar"), full, order)
    check(op("zero", "default"), xs())
    if op("copy", "default") is not None:
        check(op("copy", "default"), full, [x.float() for x in full])
    if op("clone", "default") is not None:
        check(op("clone", "default"), xs())
