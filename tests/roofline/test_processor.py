"""smelt/roofline/processor.py: a name, also where the system has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.roofline import processor


def test_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert processor.cpu_name()
    monkeypatch.setattr(processor, "Path", lambda name: tmp_path / "missing")
    assert processor.cpu_name()
