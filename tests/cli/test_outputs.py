"""Where commands write: a place that cannot be written is told before anything is measured, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from smelt.cli.main import app

FILES = [
    ("ops", "--write"),
    ("bench", "run", "bert", "--json"),
    ("bench", "overhead", "--json"),
    ("bench", "bandwidth", "--json"),
    ("census", "--library", "timm", "--json"),
]
FOLDERS = [("demo", "--out"), ("bench", "report", "results.json", "--out"), ("census", "--library", "timm", "--out")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dangling").symlink_to("nowhere/there")
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


def refused(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("command", FILES, ids=" ".join)
@pytest.mark.parametrize("name", ["folder", "file/below", "missing/below", "dangling", "circle"])
def test_a_file_that_cannot_be_written(place: Path, command: tuple[str, ...], name: str) -> None:
    refused(*command, str(place / name))
    assert (place / "file").read_text() == "kept" and not list((place / "folder").iterdir())


@pytest.mark.parametrize("command", FOLDERS, ids=" ".join)
@pytest.mark.parametrize("name", ["file", "file/below/it", "dangling", "circle"])
def test_a_folder_that_cannot_be_made(place: Path, command: tuple[str, ...], name: str) -> None:
    refused(*command, str(place / name))
    assert (place / "file").read_text() == "kept"


def test_a_link_to_a_file_is_written_through(place: Path) -> None:
    (place / "link").symlink_to("file")
    assert CliRunner().invoke(app, ["ops", "--write", str(place / "link")]).exit_code == 0
    assert (place / "link").is_symlink() and (place / "file").read_text() != "kept"


def test_negative_seconds() -> None:
    refused("demo", "--seconds", "-1")
