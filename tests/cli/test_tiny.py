"""`smelt tiny export`: a project from the command line, and what it refuses."""

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
def test_what_is_wrong_is_told(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
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
