"""What two runs wrote, without what says where they ran, side by side.

Kept are the generated sources, the guards, the residual code and what capture counted, with the user's lines. Left out
are addresses, absolute paths, names and lines of smelt's own files, numbers of stages in file names: a refactor may
change these. The graphs between stages are no part of it either; they lie beside the texts that differ.
"""

from __future__ import annotations

import difflib
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

KEPT = ("kernels.cpp", "kernels.py", "host.py", "guards.py", "residual.py", "stats.txt", "failed.txt", "left_out.txt")
"""How the names of the files end that are compared."""


class NothingWritten(Exception):
    """A program left no trace."""


Texts = Mapping[str, str]
"""By file: `000_block/forward_kernels.cpp`."""


@dataclass(frozen=True)
class Comparison:
    """How a program fared: `files` differ, as `diff` says; `note`: why the new side has not run it to its end."""

    name: str
    files: tuple[str, ...]
    diff: str
    note: str


def compare(name: str, old: Texts, new: Texts) -> Comparison:
    """The files of a program that differ and how.

    Raises:
        NothingWritten: it ran, and there is no kernel: what is compared is then not what the compiler makes.
    """
    note = new.get("failed.txt", "") or new.get("left_out.txt", "")
    if not note and not any(file.endswith(("kernels.cpp", "kernels.py")) for file in new):
        raise NothingWritten(f"{name} left no kernels in its trace")
    files = tuple(file for file in sorted(old.keys() | new.keys()) if old.get(file) != new.get(file))
    diff = "".join(_diff(f"{name}/{file}", old.get(file, ""), new.get(file, "")) for file in files)
    return Comparison(name, files, diff, note.strip())


def _diff(file: str, old: str, new: str) -> str:
    lines = old.splitlines(), new.splitlines()
    return "".join(f"{line}\n" for line in difflib.unified_diff(*lines, f"old/{file}", f"new/{file}", lineterm=""))


def texts(folder: Path, tree: Path) -> dict[str, str]:
    """What one program wrote under `folder` with the smelt in `tree`."""
    return {_file_name(file.relative_to(folder)): stable(file.read_text(), tree) for file in _kept(folder)}


def _kept(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.name.endswith(KEPT) and path.is_file())


def _file_name(file: Path) -> str:
    return str(file.with_name(re.sub(r"^\d+_", "", file.name)))


def stable(text: str, tree: Path) -> str:
    """A text without what differs between two places, two processes, or two layouts of smelt's files."""
    text = text.replace(f"{tree}/", "")
    for library in ("purelib", "platlib", "stdlib"):
        text = text.replace(f"{sysconfig.get_path(library)}/", "")
    text = re.sub(r"\bsmelt/[\w/]+\.py(:\d+)?", "smelt", text)
    text = re.sub(r"\bsmelt(\.[a-z_]\w*)+\.(?=\w)", "smelt.", text)
    text = re.sub(r"\((\d{13,15}), (\d+)\)", r"(address, \2)", text)  # a code object and an offset in it
    return re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", text)
