"""smelt/cli/verify.py"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from smelt.base.errors import BuildError
from smelt.cli import verify
from smelt.cli.main import app
from smelt.cli.verify import Check, compile_and_compare, fresh_cache, show_checks


class Stand:
    """Stands in for the package: `compile` gives back what it was told to, and counts a graph unless told not to."""

    def __init__(self, compile: Any, counts: bool) -> None:
        self._compile, self._counts, self._graphs = compile, counts, 0

    def compile(self, fn: Any, **options: Any) -> Any:
        self._graphs += self._counts
        return self._compile(fn, **options)

    def stats(self) -> dict[str, int]:
        return {"graphs": self._graphs, "fallbacks": 0}


def use(monkeypatch: pytest.MonkeyPatch, compile: Any, counts: bool = True) -> None:
    stand = Stand(compile, counts)
    monkeypatch.setattr(verify, "load_compiler", lambda: stand)


def test_python_and_torch_are_in_range() -> None:
    assert verify.check_python().status == "ok"
    assert verify.check_torch().status == "ok"


def test_another_torch_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    check = verify.check_torch()
    assert check.status == "warn"
    assert "2.11 to 2.15" in check.hint


def test_a_missing_compiler_is_an_error_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise BuildError("no C++ compiler was found", hint="install g++")

    monkeypatch.setattr(verify, "find_compiler", none)
    assert verify.check_compiler() == Check("C++ compiler", "fail", "no C++ compiler was found", "install g++")


def test_a_missing_extension_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "EXTENSIONS", ("smelt.no_such_extension",))
    check = verify.check_extensions()
    assert check.status == "fail"
    assert "smelt.no_such_extension" in check.found


def test_the_cache_folder_is_made_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "new"))
    assert verify.check_cache().status == "ok"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_cache_folder_open_to_others_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    check = verify.check_cache()
    assert check.status == "warn"
    assert "chmod 700" in check.hint


def test_a_cache_path_that_is_no_folder_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    check = verify.check_cache()
    assert check.status == "warn"
    assert "SMELT_CACHE_DIR" in check.hint


def test_the_cpu_path_passes_with_a_right_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda fn, **_: fn)
    assert verify.check_cpu().status == "ok"


def test_eager_results_without_a_graph_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda fn, **_: fn, counts=False)
    check = verify.check_cpu()
    assert check.status == "fail"
    assert "no graph was compiled" in check.found


def test_the_cpu_path_fails_with_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda fn, **_: lambda *args: fn(*args) * 1.01)
    check = verify.check_cpu()
    assert check.status == "fail"
    assert "differs from eager" in check.found


def test_the_cpu_path_fails_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fn: Any, **_: Any) -> Any:
        raise BuildError("g++ refused")

    use(monkeypatch, broken)
    check = verify.check_cpu()
    assert (check.status, check.found) == ("fail", "BuildError: g++ refused")
    assert "SMELT_TRACE=1" in check.hint


def test_compiled_gradients_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda fn, **_: lambda x, weight: fn(x, weight.detach() + 0 * weight))
    assert compile_and_compare("cpu") > 1e-4


def test_fresh_cache_puts_the_variable_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", "before")
    with fresh_cache():
        inside = os.environ["SMELT_CACHE_DIR"]
        assert inside != "before" and Path(inside).is_dir()
    assert os.environ["SMELT_CACHE_DIR"] == "before"


def test_one_openmp_runtime() -> None:
    check = verify.check_openmp()
    assert check.status in ("ok", "warn")
    assert "threads" in check.found or check.hint


def test_the_table_and_the_conclusion() -> None:
    out = io.StringIO()
    checks = [Check("one", "ok", "fine"), Check("two", "fail", "gone", "pip install two")]
    show_checks(checks, Console(file=out, width=80))
    assert "two: pip install two" in out.getvalue()
    assert "cannot compile for the CPU here: two" in out.getvalue()


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("absent", 0), ("fail", 1)])
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    monkeypatch.setattr(verify, "CHECKS", (lambda: Check("part", status, "found"),))
    result = CliRunner().invoke(app, ["verify"])
    assert result.exit_code == code
    assert ("smelt is ready" in result.output) == (code == 0)
