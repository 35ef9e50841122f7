"""DistributedDataParallel around compiled modules and inside of them: gradients as in eager, reduced while they come.

Two processes are begun once and run every case (`ddp_ranks.py`); the tests look at what they have found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ddp_ranks import CASES, INSIDE
from tests.distributed.two_processes import told_by

NEAR = 2e-6
"""Of what is compared, by its largest element. Compiled kernels sum in another order than eager's, over 64 products and
8 rows in each of 4 blocks, in float32, whose rounding is 6e-8, and 4 steps carry it on: 5e-7 was seen."""

ROUNDED = {"fp16": 2**-10}
"""Gradients that are sent in float16: one that lies next to the middle of two numbers is rounded to either."""

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="wants gloo"
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process has found."""
    return told_by(Path(__file__).with_name("ddp_ranks.py"), tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("way", INSIDE)
@pytest.mark.parametrize("case", CASES)
def test_training_is_eagers(told: list[dict[str, Any]], case: str, way: str) -> None:
    for each in told:
        assert each[f"{case} {way}"] <= ROUNDED.get(case, NEAR)
        graphs, breaks, fallbacks = each["stats"][f"{case} {way}"]
        assert graphs >= 1 and (breaks, fallbacks) == (0, 0)


@pytest.mark.parametrize("way", INSIDE)
def test_buckets_are_reduced_while_kernels_are_still_to_be_launched(told: list[dict[str, Any]], way: str) -> None:
    for each in told:
        begun, launched = each["overlap"][way]["begun"], each["overlap"][way]["launched"]
        assert len(begun) >= 4
        assert begun == sorted(begun)
        assert begun[0] <= launched // 2
        assert sum(at < launched for at in begun) >= len(begun) // 2


def test_without_stages_all_are_reduced_at_the_end(told: list[dict[str, Any]]) -> None:
    for each in told:
        begun, launched = each["at the end"]["begun"], each["at the end"]["launched"]
        assert begun
        assert set(begun) == {launched}
