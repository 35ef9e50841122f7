"""Some of the random programs over views, copies and writes; `tests/sharing_programs.py` runs any number."""

from __future__ import annotations

import pytest

from tests.sharing_programs import differs


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_programs(first: int) -> None:
    assert [text for seed in range(first, first + 20) if (text := differs(seed, grad=seed % 2 == 1))] == []
