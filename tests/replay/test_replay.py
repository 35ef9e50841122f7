"""The replay finds a change of a renderer, of a host program and of a guard, and nothing where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bench.suites.test_smoke import MODELS as MEASURED
from tests.replay.__main__ import checkout, tell
from tests.replay.compare import Comparison, NothingWritten, compare, stable
from tests.replay.programs import SMOKE, programs
from tests.replay.replay import ROOT, ReplayFailed, Side, replay

NAMES = ["functions/softmax", "functions/random_numbers"]

PLANTED = """
from smelt import pipeline
from smelt.capture.guards.guards import GuardList

cpp, triton, lines = pipeline.render_cpp, pipeline.render_triton, GuardList.lines

def render_cpp(*args):
    made = cpp(*args)
    made.cpp_sources[:] = [text + "// planted\\n" for text in made.cpp_sources]
    return made

def render_triton(*args):
    made = triton(*args)
    made.host_source += "# planted\\n"
    return made

pipeline.render_cpp, pipeline.render_triton = render_cpp, render_triton
GuardList.lines = lambda self: [*lines(self), "planted"]
"""


def plant(folder: Path, text: str) -> Side:
    (folder / "planted.py").write_text(text)
    return Side(ROOT, ("--first", "planted"), {"PYTHONPATH": f"{ROOT}:{folder}"})


def test_a_tree_against_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(Side(ROOT), Side(ROOT), tmp_path, NAMES)
    assert [(program.name, program.files, program.note) for program in found] == [(name, (), "") for name in NAMES]
    assert tell(found, tmp_path) == 0
    assert "2 programs: 2 the same, 0 different" in capsys.readouterr().out
    assert not (tmp_path / "replay.diff").exists()


def test_a_change_is_found(tmp_path: Path) -> None:
    (found,) = replay(Side(ROOT), plant(tmp_path, PLANTED), tmp_path, NAMES[:1])
    changed = "forward_kernels.cpp", "backward_kernels.cpp", "forward_triton_host.py", "guards.py"
    assert {file.rpartition("/")[2] for file in found.files} >= set(changed)
    assert not any(file.endswith(("residual.py", "stats.txt", "triton_kernels.py")) for file in found.files)
    assert "+// planted" in found.diff and "+# planted" in found.diff and "+planted" in found.diff
    assert tell([found], tmp_path) == 1
    assert (tmp_path / "replay.diff").read_text() == found.diff
    assert next((tmp_path / "new" / found.name).glob("*/3_prims.py")).exists()  # the graphs beside them


def test_a_program_that_fails_is_reported(tmp_path: Path) -> None:
    broken = "from smelt import pipeline\n\ndef render_cpp(*args):\n    raise ValueError('planted')\n"
    side = plant(tmp_path, broken + "\npipeline.render_cpp = render_cpp\n")
    (found,) = replay(Side(ROOT), side, tmp_path, NAMES[:1])
    assert "failed.txt" in found.files and "planted" in found.note


def test_a_process_that_ends_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ReplayFailed, match="planted"):
        replay(Side(ROOT), plant(tmp_path, "raise ValueError('planted')\n"), tmp_path, NAMES[:1])
    side = plant(tmp_path, "import os\nfrom smelt import pipeline\n\npipeline.render_cpp = lambda *args: os._exit(3)\n")
    (found,) = replay(Side(ROOT), side, tmp_path / "out", NAMES[:1])
    assert found.note == "ended with status 3"


def test_a_trace_without_kernels_is_no_trace() -> None:
    kept = {"stats.txt": "graphs: 1\n"}
    with pytest.raises(NothingWritten):
        compare("a", kept, kept)
    assert compare("a", kept, kept | {"left_out.txt": "needs timm\n"}).note == "needs timm"
    assert compare("a", kept, kept | {"0_f/forward_kernels.cpp": "x"}) == Comparison(
        "a", ("0_f/forward_kernels.cpp",), "--- old/a/0_f/forward_kernels.cpp\n+++ new/a/0_f/forward_kernels.cpp\n"
        "@@ -0,0 +1 @@\n+x\n", ""
    )  # fmt: skip


def test_dedicated_buffers_do_not_change_results() -> None:
    tree = Path("/some/tree")
    for text, want in {
        "x == 1  # /some/tree/tests/replay/programs.py:7": "x == 1  # tests/replay/programs.py:7",
        "x == 1  # /some/tree/smelt/capture/optimizers.py:60": "x == 1  # smelt",
        "<Thing at 0x7f00aa>, 0x7fffffffu": "<Thing at 0x...>, 0x7fffffffu",
        "_c.expect(_h1, _c.Kind, (94719398088480, 86))": "_c.expect(_h1, _c.Kind, (address, 86))",
        "shape (1048576, 3)": "shape (1048576, 3)",
        "smelt.capture.cache.Place, smelt.compile": "smelt.Place, smelt.compile",
    }.items():
        assert stable(text, tree) == want


def test_the_programs() -> None:
    names = programs()
    assert set(SMOKE) == set(MEASURED)
    assert len([name for name in names if name.startswith("functions/")]) >= 12
    assert {name for name in names if name.startswith("models/")} == {
        f"models/{m}" for m in ("bert", "gpt2", "resnet50", "vit")
    }


@pytest.mark.slow
def test_a_commit_is_built_beside_the_working_tree(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    before = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, check=True).stdout
    with checkout("HEAD") as tree:
        assert list(tree.glob("smelt/capture/_native*.so")) and tree != ROOT
        (found,) = replay(Side(tree), Side(tree), tmp_path, NAMES[:1])
    assert not found.files and not found.note
    assert subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, check=True).stdout == before
