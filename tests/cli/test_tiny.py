"""`smelt tiny export` and `figures`: a project from the command line, its figures, and what both refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from smelt.cli.main import app
from tests.tiny import model_files as files


def export(folder: Path, *arguments: str) -> Result:
    model = str(files.write(folder))
    return CliRunner().invoke(app, ["tiny", "export", model, "--classes", "3", "-o", str(folder / "out"), *arguments])


def test_a_project_is_written(tmp_path: Path) -> None:
    scheme = tmp_path / "mine.json"
    scheme.write_text(json.dumps({"name": "mine", "biases": 3, "weights": {"4": "1/2"}}))
    ran = export(tmp_path, "--scheme", str(scheme), "--board", "host")
    assert ran.exit_code == 0, ran.output
    assert "mine (biases of the last 3 layers; weights {4: 1/2})" in ran.output
    assert (tmp_path / "out" / "model.c").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--scheme", "bias-99"), "trains the biases of 99 layers"),
        (("--scheme", "best"), "unknown scheme 'best'"),
        (("--scheme", "none.json"), "the scheme none.json cannot be read"),
        (("--board", "uno"), "unknown board 'uno'"),
        (("--budget", "much"), "'much' is no size"),
        (("--budget", "6KB", "--board", "mps2-an500", "--scheme", "full"), "the budget is 6,144 B"),
        (("--rounding", "down"), "unknown rounding 'down'"),
        (("--stack", "1001", "--board", "mps2-an500"), "a multiple of 16"),
    ],
)
def test_wrong_input_is_reported(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    ran = export(tmp_path, *arguments)
    assert ran.exit_code == 2
    assert told in ran.output
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_none(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    ran = CliRunner().invoke(app, ["tiny", "export", str(tmp_path / "no.json"), "-o", out])
    assert ran.exit_code == 2 and "there is no" in ran.output
    ran = CliRunner().invoke(app, ["tiny", "export", str(files.write(tmp_path)), "-o", out])
    assert ran.exit_code == 2 and "ends in an int8 classifier" in ran.output


def figures(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["tiny", "figures", str(files.write(folder)), *arguments], env={"COLUMNS": "120"})


def test_figures_of_the_planner(tmp_path: Path) -> None:
    ran = figures(tmp_path, "--classes", "3")
    assert ran.exit_code == 0, ran.output
    for name in ("classifier", "within-49KB", "full"):
        assert name in ran.output
    ran = figures(tmp_path, "--scheme", "bias-2", "--scheme", "last-1")
    assert [name in ran.output for name in ("bias-2", "last-1", "full")] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--scheme", "best"), "unknown scheme 'best'"),
        (("--scheme", "within-1B"), "take"),
        (("--board", "uno"), "unknown board 'uno'"),
        (("--board", "host"), "there is no emulator of host"),
        (("--board", "generic-cortex-m7"), "generic-cortex-m7"),
        (("--check",), "run on a board"),
        (("--steps", "3"), "run on a board"),
        (("--stack", "much"), "'much' is no size"),
        (("--backward", "int4"), "unknown backward 'int4'"),
    ],
)
def test_figures_that_cannot_be_had(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    ran = figures(tmp_path, *arguments)
    assert ran.exit_code == 2
    assert told in ran.output


def test_figures_without_the_tools_of_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = figures(tmp_path, "--board", "mps2-an500")
    assert ran.exit_code == 2
    assert "arm-none-eabi-gcc is not installed" in ran.output and "apt-get install gcc-arm-none-eabi" in ran.output
