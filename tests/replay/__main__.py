"""`python -m tests.replay BASE`: whether the working tree generates what the commit BASE does, for a set of programs.

BASE is checked out into a temporary folder, with its C extensions built there; `--head COMMIT` compares two commits.
Each side runs in processes of its own with an empty cache. The exit status is 1 where anything differs; the folder
`--out` then holds the difference (`replay.diff`) and every artefact of either side.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .compare import Comparison
from .programs import programs
from .replay import ROOT, Side, replay


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # work trees of commits go with the process
    out = given.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(checkout(given.base))
        new = stack.enter_context(checkout(given.head)) if given.head else ROOT
        found = replay(Side(old), Side(new), out, _chosen(given.only))
    return tell(found, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("base", help="a commit")
    parser.add_argument("--head", help="another one; default: the working tree")
    parser.add_argument("--only", default="", help="programs whose names hold one of these, separated by commas")
    parser.add_argument("--out", type=Path, default=ROOT / "smelt_report" / "replay", help="for what differs")
    return parser.parse_args()


def _chosen(only: str) -> list[str]:
    return [name for name in programs() if any(part in name for part in only.split(","))]


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A temporary work tree of a commit with its C extensions, and with this file's programs in place of its own."""
    with tempfile.TemporaryDirectory(prefix="smelt-replay-") as folder:
        tree = Path(folder).resolve() / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, check=True)
            shutil.rmtree(tree / "tests" / "replay", ignore_errors=True)
            shutil.copytree(Path(__file__).parent, tree / "tests" / "replay")
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def tell(found: Sequence[Comparison], out: Path) -> int:
    """Print which programs are the same; 1 where one is not."""
    different = [program for program in found if program.files]
    for program in found:
        if program.note:
            print(f"not run to its end: {program.name}: {program.note}")
    for program in different:
        print(f"different: {program.name}: {', '.join(program.files)}")
    print(f"{len(found)} programs: {len(found) - len(different)} the same, {len(different)} different")
    if different:
        (out / "replay.diff").write_text("".join(program.diff for program in different))
        print(f"see {out / 'replay.diff'}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
