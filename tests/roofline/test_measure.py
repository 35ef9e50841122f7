"""smelt/roofline/measure.py: ceilings are plausible, kept, and measured again on request."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from smelt.abi.ceilings import Ceilings
from smelt.roofline import measure

CPU = torch.device("cpu")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_WINDOW_S", 1e-4)
    monkeypatch.setattr(measure, "_CPU_BYTES", (1 << 14, 1 << 18, 1 << 22))
    monkeypatch.setattr(measure, "_CPU_SIDES", (32, 64))
    monkeypatch.setattr(measure, "DTYPES", ("float32", "float64"))


def test_ceilings_are_measured_once_and_kept(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure.ceilings(CPU, again=True)
    assert [size for size, _ in found.bandwidths] == [1 << 14, 1 << 18, 1 << 22]
    speeds = [speed for _, speed in found.bandwidths]
    assert speeds == sorted(speeds, reverse=True) and all(1e8 < speed < 1e14 for speed in speeds)
    assert set(found.products) == {"float32", "float64"} and found.pointwise == found.products["float32"] > 1e7
    assert "thread" in found.machine
    with monkeypatch.context() as context:
        context.setattr(measure, "_measure", pytest.fail)
        assert measure.ceilings(CPU) == measure.stored_ceilings(CPU) == found
    assert measure.ceilings(CPU, again=True) != found  # no two measurements are equal


def test_another_number_of_threads_is_another_machine(quick: None) -> None:
    measure.ceilings(CPU, again=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 3)
        assert measure.stored_ceilings(CPU) is None
    finally:
        torch.set_num_threads(before)


def test_a_dtype_without_a_product_has_no_ceiling() -> None:
    assert measure._product(CPU, torch.uint16) == 0.0


def test_smaller_sizes_are_at_least_as_fast() -> None:
    assert measure._descending([(1, 5.0), (2, 7.0), (4, 3.0)]) == ((1, 7.0), (2, 7.0), (4, 3.0))


def test_float32_products_may_be_rounded_where_pytorch_may(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Ceilings("a GPU", ((1, 1.0),), {"float32": 1.0, "tf32": 8.0}, 1.0)
    assert measure.with_precision(known) == known
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    rounded = dataclasses.replace(known, products={"float32": 8.0, "tf32": 8.0})
    assert measure.with_precision(known) == rounded
    assert rounded.pointwise == 1.0
