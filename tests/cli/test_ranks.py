"""smelt/cli/ranks.py: reports of the processes of a distributed run, and what they differ in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import smelt
from smelt.base.errors import OptionError
from smelt.cli.explain import explain_script
from smelt.cli.main import app
from smelt.cli.ranks import RankReport, merged, read_reports, write_report

STATS: dict[str, Any] = {"graphs": 1, "breaks": 0, "compile_s": 1.25, "stage_s": {"build": 1.0}, "break_reasons": {}}


def report(rank: int, world: int = 2, status: int = 0, **stats: Any) -> RankReport:
    return RankReport(rank, world, "train.py --fast", status, STATS | stats, f"== rank {rank} ==")


def test_equal_processes() -> None:
    text = merged([report(0), report(1, compile_s=3.0)])
    assert text.splitlines() == [
        "train.py --fast", "",
        "           rank 0  rank 1", "graphs          1       1", "breaks          0       0",
        "compile_s    1.25    3.00",
    ]  # fmt: skip


def test_what_only_some_have_is_named() -> None:
    other = report(2, 3, breaks=1, break_reasons={"open is called (train.py:3)": 1, "print (train.py:4)": 1})
    text = merged([report(0, 3, break_reasons={"print (train.py:4)": 1}), other])
    assert "no report of rank 1" in text
    assert next(line for line in text.splitlines() if line.startswith("breaks ")).split() == [
        "breaks", "0", "1", "differ"
    ]  # fmt: skip
    assert text.endswith("break_reasons that differ:\n  open is called (train.py:3): 1 on rank 2")


def test_a_script_that_failed_is_named() -> None:
    assert "rank 1 ended with exit status 3" in merged([report(0), report(1, status=3)])


def test_they_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "12")
    for rank in (10, 2):
        monkeypatch.setenv("RANK", str(rank))
        write_report(tmp_path / "new", "train.py", 0, STATS, "text \udc80")
    assert [(each.rank, each.world) for each in read_reports(tmp_path / "new")] == [(2, 12), (10, 12)]
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"rank2.json", "rank10.json"}


@pytest.mark.parametrize("text", ["{", "[]", '{"rank": 1}', None])
def test_other_files_are_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "rank0.json").write_text(text)
    with pytest.raises(OptionError, match="is no report" if text else "has no reports"):
        read_reports(tmp_path)
    done = CliRunner().invoke(app, ["ranks", str(tmp_path)])
    assert done.exit_code and not isinstance(done.exception, OptionError)


def test_a_script_is_explained_for_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.compile(lambda x: x + 1)(torch.ones(3))\n")
    main, path, argv = sys.modules["__main__"], [*sys.path], sys.argv
    monkeypatch.setenv("WORLD_SIZE", "2")
    try:
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            smelt.reset()
            assert explain_script(str(script), [], False, None, ranks=tmp_path / "told") == 0
    finally:
        sys.modules["__main__"], sys.path[:], sys.argv = main, path, argv
        smelt.uninstall()
    both = CliRunner().invoke(app, ["ranks", str(tmp_path / "told")])
    assert both.exit_code == 0 and "differ" not in both.stdout
    one = CliRunner().invoke(app, ["ranks", str(tmp_path / "told"), "--rank", "1"])
    assert one.exit_code == 0 and "graphs: 1" in one.stdout
    none = CliRunner().invoke(app, ["ranks", str(tmp_path / "told"), "--rank", "7"])
    assert none.exit_code == 2 and "rank 7" in none.output
