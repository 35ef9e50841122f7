"""These tests run in a process of their own, on a CUDA runtime without a driver: see tests/test_driverless.py."""

from __future__ import annotations

import os

import pytest

ACTIVE = "SMELT_TESTS_DRIVERLESS"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ACTIVE in os.environ:
        return
    for item in items:
        if "driverless" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="tests/test_driverless.py runs it"))
