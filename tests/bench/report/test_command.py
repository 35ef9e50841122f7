"""`smelt bench report`"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from smelt.bench.tables import markdown
from smelt.cli.bench import bench
from tests.bench.report.made_up import row, run


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """An older and a newer run."""
    runs = {"old": run(row("a", eager=1.0, smelt=0.5)), "new": run(row("a", eager=1.0, smelt=1.0))}
    for name, benchmark in runs.items():
        benchmark.save(tmp_path / f"{name}.json")
    return [str(tmp_path / f"{name}.json") for name in runs]


def report(*arguments: str) -> tuple[int, str]:
    """Exit code and all that was printed."""
    result = CliRunner().invoke(bench, ["report", *arguments])
    return result.exit_code, result.output


def test_markdown_of_each_file_is_the_default(files: list[str]) -> None:
    tables = [markdown(run(row("a", eager=1.0, smelt=step))) for step in (0.5, 1.0)]
    assert report(*files) == (0, "\n".join(tables) + "\n")


def test_out_writes_both_forms_and_prints_their_paths(files: list[str], tmp_path: Path) -> None:
    code, text = report(files[0], "--out", str(tmp_path / "out"))
    assert code == 0
    assert "2.00x (1 row) as fast as eager" in text and str(tmp_path / "out" / "index.html") in text
    assert "| a |" not in text
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"report.md", "index.html"}


def test_compare_prints_and_writes(files: list[str], tmp_path: Path) -> None:
    code, text = report("--compare", *files, "--out", str(tmp_path / "out"))
    assert code == 0
    assert "## Worse: slower steps" in text and "2.00x over eager, now 1.00x" in text
    assert "Worse: slower steps" in (tmp_path / "out" / "index.html").read_text()
    assert report("--compare", *files)[0] == 0


def test_mistakes_are_explained(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"command": "smelt be')
    for arguments, message in (
        ([str(tmp_path / "none.json")], "cannot read"),
        ([str(tmp_path / "broken.json")], "is not JSON"),
        (["--compare", files[0]], "two files"),
        (["--compare", *files, "--contender", "nobody"], "unknown contender"),
    ):
        code, text = report(*arguments)
        assert code == 2 and message in " ".join(text.split()) and "Traceback" not in text
