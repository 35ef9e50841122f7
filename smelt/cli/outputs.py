"""Checks the output paths of commands before they start, because some commands measure for hours before they write."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def output_file(path: Path | None) -> Path | None:
    """Check that a file can be written, or made in its folder; links are followed. Returns the path.

    Raises:
        typer.BadParameter: the file cannot be written.
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
    """Check that a file can be written and, if it exists, is a page and not the script in the wrong argument.

    Raises:
        typer.BadParameter: the file cannot be written, or exists and is not a page.
    """
    path = output_file(path)
    if path is not None and path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            _require(file.read(20).lower().startswith(b"<!doctype html"), f"{path} is there and is no HTML page")
    return path


def output_folder(path: Path | None) -> Path | None:
    """Check that a folder exists and files can be written in it, or that it can be made. Returns the path.

    Raises:
        typer.BadParameter: the folder cannot be used.
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
