"""Writes docs/files.md: every folder of the compiler and the job of each file, from the first lines of docstrings.

The folders stand in docs/architecture.md as well.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "files.md"
LEFT_OUT = ("bench", "demo")
"""They use the compiler as anybody does."""

FOLDERS = (
    *("", "capture", "capture/core", "capture/guards", "capture/python", "capture/arrays"),
    *("capture/tensors", "capture/prologue"),
    "capture/subclasses",
    *("capture/calls", "capture/control_flow", "capture/equal_calls", "capture/torch", "capture/opcodes"),
    "capture/residual",
    *("graph", "graph/ir", "graph/meta_rules", "graph/trace", "graph/nodes"),
    *("autograd", "autograd/trace", "autograd/repeated", "autograd/partition", "autograd/call"),
    *("prims", "prims/kernels", "prims/rules", "prims/rules/layers", "prims/passes"),
    *("loops", "schedule", "codegen", "codegen/cpp", "codegen/triton"),
    *("runtime", "runtime/cuda", "runtime/triton", "runtime/library"),
    "roofline",
    *(
        "tiny",
        "tiny/captured",
        "tiny/attention",
        "tiny/joining",
        "tiny/boards",
        "tiny/project",
        "page",
        "artefact",
        "abi",
        "shapes",
        "base",
        "cli",
        "debug",
        "integrations",
    ),
)
"""In the order in which a compilation goes through them, then what all of them use."""

ARCHITECTURE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- folders -->", "<!-- end of folders -->"

HEAD = """# Every file and its job

Written by `python docs/make_files.py` from the first line of each docstring, in the order in which a compilation
goes through the folders; [architecture.md](architecture.md) is the picture of it. C files say their job in their first
comment, and `smelt/capture/native/native.h` has a map of its folder.
"""


def page() -> str:
    """The text of docs/files.md."""
    return "\n".join([HEAD, *(line for folder in FOLDERS for line in _section(folder))])


def folders() -> str:
    """The lines of docs/architecture.md that name every folder."""
    named = [(folder, _first_line(ROOT / "smelt" / folder / "__init__.py")) for folder in FOLDERS if folder]
    return "\n".join(f"- `{folder}`: {job}" for folder, job in named)


def with_folders(text: str) -> str:
    """The text of docs/architecture.md with the lines of today between its marks."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{folders()}\n{END}{rest.split(END)[1]}"


def _section(folder: str) -> list[str]:
    path = ROOT / "smelt" / folder
    lines = [f"## `smelt/{folder}`".replace("smelt/`", "smelt`"), "", _first_line(path / "__init__.py"), ""]
    files = sorted(file for file in path.glob("*.py") if file.name != "__init__.py")
    return [*lines, *(f"- `{file.name}`: {_first_line(file)}" for file in files), ""]


def _first_line(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page())
    ARCHITECTURE.write_text(with_folders(ARCHITECTURE.read_text()))
