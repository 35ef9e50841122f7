"""smelt/capture/compiled.py: imports that a compiled program causes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import smelt

MODULE = """
import typing

T = typing.TypeVar("T")

def scale():
    return 3

class Box(typing.Generic[T]):
    size = scale()
"""


def test_imports_run_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smelt_imported_late.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    @smelt.disable(recursive=False)
    def load() -> int:
        return importlib.import_module("smelt_imported_late").Box.size

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * load()

    try:
        torch.testing.assert_close(smelt.compile(f)(torch.ones(3)), torch.full((3,), 3.0))
    finally:
        sys.modules.pop("smelt_imported_late", None)
