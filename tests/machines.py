"""Other machines than the one that kernels are tuned for, so that small tensors are what large ones are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from smelt import target


def tune(monkeypatch: pytest.MonkeyPatch, stage: str, **numbers: Any) -> None:
    """Compile for a GPU with other numbers of one stage (see smelt/schedule/machine.py)."""
    machine = target.GPU
    changed = replace(getattr(machine, stage), **numbers)
    monkeypatch.setattr(target, "GPU", replace(machine, **{stage: changed}))
