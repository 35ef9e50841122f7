"""smelt/capture/compiled.py: imports that a compiled program causes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import smelt
from tests.capture.harness import compiled

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


def test_modules_are_found_by_name_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, number: float) -> ModuleType:
        made = ModuleType(name)
        made.number = number  # type: ignore[attr-defined]
        return made

    def fn(x: torch.Tensor) -> torch.Tensor:
        import replaced_later  # type: ignore[import-not-found]
        from replaced_later import number

        return x * replaced_later.number + number

    def inside(x: torch.Tensor) -> torch.Tensor:
        import holding_later.inner as inner  # type: ignore[import-not-found]

        return x * inner.number

    monkeypatch.setitem(sys.modules, "replaced_later", module("replaced_later", 1.0))
    holding, inner = module("holding_later", 0.0), module("holding_later.inner", 2.0)
    holding.inner = inner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holding_later", holding)
    monkeypatch.setitem(sys.modules, "holding_later.inner", inner)
    run, run_inside, x = compiled(fn), compiled(inside), torch.ones(1)
    assert run(x).item() == 2 and run_inside(x).item() == 2
    monkeypatch.setitem(sys.modules, "replaced_later", module("replaced_later", 5.0))
    other = module("holding_later", 0.0)
    other.inner = module("holding_later.inner", 7.0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holding_later", other)
    assert run(x).item() == 10 and run_inside(x).item() == 7
    monkeypatch.delitem(sys.modules, "replaced_later")
    with pytest.raises(ModuleNotFoundError):
        run(x)
