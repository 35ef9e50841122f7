"""FSDP2 around compiled blocks, compiled regions and whole models: losses, gradients and parameters as in eager.

Two processes are begun once and run every case (`fsdp_ranks.py`); the tests look at what they have found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.fsdp_ranks import WAYS_OF_CASES
from tests.distributed.two_processes import told_by

NEAR = 3e-5
"""Of what is compared, by its largest element. The last layer's norm takes most of the gradients away, whose terms are
rounded to 6e-8 each: 1.4e-5 was seen."""

ROUNDED = {"bf16": 2**-7}
"""Parameters and activations in bfloat16: one that lies next to the middle of two numbers is rounded to either."""

PAIRS = [(case, way) for case, ways in WAYS_OF_CASES.items() for way in ways]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="wants gloo"
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process has found."""
    return told_by(Path(__file__).with_name("fsdp_ranks.py"), tmp_path_factory.mktemp("fsdp"))


@pytest.mark.parametrize(("case", "way"), PAIRS)
def test_training_is_eagers(told: list[dict[str, Any]], case: str, way: str) -> None:
    for each in told:
        assert each[f"{case}, {way}"] <= ROUNDED.get(case, NEAR)


@pytest.mark.parametrize(("case", "way"), PAIRS)
def test_hooks_of_blocks_end_no_graph(told: list[dict[str, Any]], case: str, way: str) -> None:
    """Compiled as a whole, the graph ends before the hooks of the first block, and is resumed after each. Blocks that
    are compiled by hand share one graph."""
    for each in told:
        graphs, breaks, fallbacks = each["stats"][f"{case}, {way}"]
        assert (breaks, fallbacks) == (way == "whole", 0)
        assert graphs == 1 if "by hand" in way else graphs >= 1
