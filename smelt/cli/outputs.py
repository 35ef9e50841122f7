"""Output paths of commands, checked before a command starts because some measure for hours before they write."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def output_file(path: Path | None) -> Path | None:
    """A file that can be written, or made in its folder; links are followed.

    Raises:
        typer.BadParameter: it cannot.
    """
    if path is None:
        return None
    if path.exists():
        _require(path.is_file() or not path.is_dir(), f"{path} is a folder; a file is written")
        _require(os.access(path, os.W_OK), f"{path} cannot be written")
        return path
    _require(not path.is_symlink(), f"{path} is a link that leads nowhere")
    _require(path.parent.is_dir(), f"there is no folder {path.parent}")
    _require(os.access(path.parent, os.W_OK | os.X_OK), f"nothing can be written in {path.parent}")
    return path


def page_file(path: Path | None) -> Path | None:
    """A file that can be written, and that is a page if it exists: not the script, given as the wrong argument.

    Raises:
        typer.BadParameter: it cannot be written, or is not a page.
    """
    path = output_file(path)
    if path is not None and path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            _require(file.read(20).lower().startswith(b"<!doctype html"), f"{path} is there and is no HTML page")
    return path


def output_folder(path: Path | None) -> Path | None:
    """A folder in which files can be written, or that can be made.

    Raises:
        typer.BadParameter: it cannot.
    """
    if path is None:
        return None
    for part in (path, *path.absolute().parents):
        _require(part.exists() or not part.is_symlink(), f"{part} is a link that leads nowhere")
        if part.exists():
            _require(part.is_dir(), f"{part} is no folder")
            _require(os.access(part, os.W_OK | os.X_OK), f"nothing can be written in {part}")
            break
    return path


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise typer.BadParameter(otherwise)
