"""Writes docs/how-it-works.md: one small function on its way through every stage, with the real output of each.

    python docs/make_story.py            write the page
    python docs/make_story.py --check    exit with 1 if the committed page is no longer what the compiler makes

The narrative stands in docs/how-it-works.in.md. A line `<!-- artefact: PATTERN -->` there is replaced by the artefacts
whose names fit, as SMELT_TRACE=1 writes them (forward and backward may have one each); `<!-- program -->` by the traced
program itself.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
NARRATIVE = DOCS / "how-it-works.in.md"
PAGE = DOCS / "how-it-works.md"
PROGRAM = DOCS / "story.py"

LANGUAGES = {".py": "python", ".txt": "text", ".cpp": "cpp"}
MARK = re.compile(r"^<!-- (program|artefact: (?P<pattern>[\w.*/]+)) -->$")


def trace_program() -> dict[str, str]:
    """Run the program in a fresh process with empty caches; its artefacts by file name.

    Raises:
        RuntimeError: the program failed, or left more or less than one graph.
    """
    with tempfile.TemporaryDirectory(prefix="smelt-story-") as folder:
        variables = {"SMELT_TRACE": "1", "SMELT_TRACE_DIR": f"{folder}/trace", "SMELT_CACHE_DIR": f"{folder}/cache"}
        run = subprocess.run(
            [sys.executable, str(PROGRAM)],
            env=os.environ | variables | {"SMELT_STRICT": "1", "OMP_NUM_THREADS": "2", "PYTHONPATH": str(DOCS.parent)},
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise RuntimeError(f"{PROGRAM.name} failed:\n{run.stderr}")
        graphs = sorted(Path(folder, "trace").glob("*"))
        if len(graphs) != 1:
            raise RuntimeError(f"{PROGRAM.name} left {len(graphs)} graphs, one was expected")
        return {file.name: stable(file.read_text()) for file in sorted(graphs[0].iterdir())}


def stable(text: str) -> str:
    """The artefact without what differs between two runs or machines: addresses, absolute paths, build hashes."""
    text = text.replace(str(DOCS.parent) + os.sep, "")
    text = re.sub(r"<module '([\w.]+)' from '[^']*'>", r"<module '\1'>", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    text = re.sub(r"\b[0-9a-f]{32,64}\b", lambda match: match[0][:8] + "...", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"


def make_page(narrative: str, artefacts: dict[str, str]) -> str:
    """The page: the narrative with every mark replaced.

    Raises:
        KeyError: the narrative asks for an artefact that the compiler did not write.
    """
    lines = ["<!-- made by `make docs` from how-it-works.in.md and story.py; do not edit -->", ""]
    for line in narrative.splitlines():
        mark = MARK.match(line)
        if mark is None:
            lines.append(line)
        elif mark["pattern"] is None:
            lines.append(block(PROGRAM.name, PROGRAM.read_text()))
        else:
            lines.append("\n\n".join(block(name, artefacts[name]) for name in matching(mark["pattern"], artefacts)))
    return "\n".join(lines) + "\n"


def matching(pattern: str, artefacts: dict[str, str]) -> list[str]:
    """The names that fit the pattern, backward after forward.

    Raises:
        KeyError: there is none.
    """
    names = fnmatch.filter(artefacts, pattern)
    if not names:
        raise KeyError(f"no artefact is named {pattern}; there are {', '.join(artefacts)}")
    return sorted(names, key=lambda name: ("backward" in name, name))


def block(name: str, text: str) -> str:
    """The file's name and its text, fenced in the language of its ending."""
    return f"`{name}`\n```{LANGUAGES.get(Path(name).suffix, 'text')}\n{text.rstrip()}\n```"


def comparable(page: str) -> str:
    """The page without the generated C++ and the ambient modes, which follow the machine it was generated on."""
    page = re.sub(r"^modes are .*$", "modes are ...", page, flags=re.MULTILINE)
    return re.sub(r"```cpp\n.*?```", "```cpp```", page, flags=re.DOTALL)


def main() -> int:
    page = make_page(NARRATIVE.read_text(), trace_program())
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
        return 0
    old, new = (comparable(text).splitlines() for text in (PAGE.read_text(), page))
    difference = list(difflib.unified_diff(old, new, "committed", "generated", lineterm=""))
    print("\n".join(difference))
    if difference:
        print("docs/how-it-works.md is out of date: run `make docs`", file=sys.stderr)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
