"""smelt/base/imports.py: a module is imported at the first call; what is named exists and is declared for the types."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

import smelt
from smelt.base.imports import late

PACKAGE = Path(smelt.__file__).parent


def test_the_module_is_imported_at_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seldom_needed.py").write_text("def twice(x, by=2): return x * by\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    twice = late("seldom_needed", "twice")
    assert "seldom_needed" not in sys.modules
    assert twice(4) == 8 and twice(4, by=3) == 12 and "seldom_needed" in sys.modules
    del sys.modules["seldom_needed"]


def test_late_names_exist_and_are_declared_where_they_are_used() -> None:
    found = 0
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        declared = {
            (node.module, name.name)
            for branch in ast.walk(tree)
            if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
            for node in branch.body
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name("late"), args=[ast.Constant(str(module)), ast.Constant(str(name))]):
                    assert (module, name) in declared, f"{path}:{node.lineno}"
                    assert callable(getattr(importlib.import_module(module), name))
                    found += 1
    assert found
