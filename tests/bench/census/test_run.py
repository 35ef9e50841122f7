"""smelt/bench/census: a few architectures of each library in processes of their own; choice, results, report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from smelt.base.errors import OptionError, SmeltError
from smelt.bench.census.report import markdown, one_line, summary, write_census
from smelt.bench.census.results import Census, Outcome, Row
from smelt.bench.census.run import Run, choose, examine_row, run_census
from smelt.bench.processes.process import Failure, Limits
from smelt.cli.main import app


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


@pytest.mark.parametrize(
    ("library", "only", "names"),
    [
        ("timm", "^(resnet10t|vit_tiny_patch16_224|levit_128s)$", ["levit_128s", "resnet10t", "vit_tiny_patch16_224"]),
        ("transformers", "^(bert|t5|clip)$", ["bert", "clip", "t5"]),
    ],
)
def test_architectures_are_captured_whole(tmp_path: Path, library: str, only: str, names: list[str]) -> None:
    to = console()
    file = tmp_path / "c.json"
    census = run_census(Run(library, only, command="smelt census", json_file=file), to)
    are_whole(census, names, to)
    assert Census.load(file) == census


def are_whole(census: Census, names: list[str], to: Console) -> None:
    assert sorted(row.name for row in census.rows) == names
    for row in census.rows:
        assert row.status == "whole", row.errors or row.reasons
        assert set(row.modes) == {"eval", "train"}
        assert all((outcome.graphs, outcome.breaks) == (1, 0) for outcome in row.modes.values())
    assert f"{len(names)} of {len(names)} captured whole (100.0 %)" in to.file.getvalue()  # type: ignore[attr-defined]


def test_an_interrupted_census_goes_on(tmp_path: Path) -> None:
    file, to = tmp_path / "c.json", console()
    first = run_census(Run("suites", "/lennard_jones$", json_file=file), console())
    again = run_census(Run("suites", "/(lennard_jones|tts_angular)$", json_file=file, resume=True), to)
    assert again.rows[0] == first.rows[0]
    are_whole(again, ["torchbench/lennard_jones", "torchbench/tts_angular"], to)
    assert Census.load(file) == again
    with pytest.raises(OptionError, match="exists already"):
        run_census(Run("suites", "/lennard_jones$", json_file=file), console())
    with pytest.raises(OptionError, match="holds a census of timm"):
        run_census(Run("timm", "resnet10t", json_file=file, resume=True), console())


def test_a_sample_is_spread_and_repeats() -> None:
    names = [f"n{i:03}" for i in range(300)]
    found = choose(names, Run("timm", sample=30))
    assert found == choose(names, Run("timm", sample=30))
    assert len(found) == 30
    assert all(int(b[1:]) - int(a[1:]) == 10 for a, b in zip(found, found[1:], strict=False))
    assert choose(names, Run("timm", only="^n00", sample=50)) == names[:10]


class Pretended:
    """A server whose tasks end as told."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def run(self, *arguments: Any) -> Any:
        return self.outcome


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failure("timeout", "no end", "capture"), "timeout"),
        (Failure("timeout", "no end", "eager"), "eager_fails"),
        (Failure("fail_run", "SIGSEGV", "capture"), "error"),
        (Failure("fail_run", "SIGSEGV", "eager"), "eager_fails"),
        (Failure("eager_fails", "ValueError", "capture"), "eager_fails"),
    ],
)
def test_failure_in_eager_is_not_reported_as_capture_failure(failure: Failure, status: str) -> None:
    row = examine_row("timm", "a", Pretended(failure), {}, Limits())  # type: ignore[arg-type]
    assert row.status == status
    assert row.errors == [failure.error]


def rows() -> list[Row]:
    whole, broken = Outcome("whole", graphs=1), Outcome("breaks", graphs=3, breaks=1, reasons={"x | y (a/b.py:3)": 2})
    return [
        Row("a", modes={"eval": whole, "train": Outcome("eager_fails", "no gradients")}),
        Row("b", modes={"eval": whole, "train": broken}),
        Row("c", modes={"eval": broken, "train": Outcome("wrong", "output: 3 of 4 differ")}),
        Row("d", failure="eager_fails", error="ValueError: no"),
        Row("e", failure="timeout", error="no end after 9 s"),
    ]


def test_the_gravest_mode_counts(tmp_path: Path) -> None:
    census = Census("timm", "timm 1.0", "smelt census", rows=rows())
    assert [row.status for row in census.rows] == ["whole", "breaks", "wrong", "eager_fails", "timeout"]
    assert "1 of 4 captured whole (25.0 %)" in summary(census)
    text = markdown(census)
    assert "| 2 | x \\| y | b, c |" in text
    assert "- d: ValueError: no" in text
    assert "b (0.0 s): breaks: 2 x x | y (a/b.py:3)" in one_line(census.rows[1])
    assert write_census(tmp_path / "new", census).read_text() == text
    census.rows.append(Row("f", modes={"eval": Outcome("forks", "output: 1 of 4 differs", 1)}))
    assert "1 of 5 captured whole (20.0 %), 2 with forks (40.0 %)" in summary(census)


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"library": "timm"}', '{"library": "a", "version": "b", "command": "c", "rows": [{}]}']
)
def test_files_of_something_else_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(SmeltError, match="holds no census"):
        Census.load(file)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--library", "tim"], "did you mean 'timm'"),
        (["--library", "timm", "--only", "("], "not a regular expression"),
        (["--library", "timm", "--only", "no such model"], "has no architecture"),
        (["--library", "timm", "--sample", "0"], "takes no architecture"),
        (["--library", "timm", "--resume"], "--json FILE"),
        (["--library", "timm", "--json", "/no/such/folder/a.json"], "there is no folder"),
    ],
)
def test_bad_input_is_explained(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["census", *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["census", "--library", "timm"])
    assert result.exit_code == 2
    assert "pip install timm" in result.output
