"""The programs in examples/distributed: losses as in eager, checkpoints that load without smelt.

torchrun begins two processes once, which run every program, eager and compiled (`example_ranks.py`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.example_ranks import FOLDER, STEPS
from tests.distributed.two_processes import results_in

ROOT = FOLDER.parents[1]
GRAPHS = {"ddp": 1, "fsdp": 3, "titan": 1, "accelerate_ddp": 1, "trainer_ddp": 1, "lightning_ddp": 1}
"""Of each program: fsdp.py has one for the blocks and two around them, titan.py one for its blocks."""

NEEDS = {
    "accelerate_ddp": "accelerate", "trainer_ddp": "transformers", "lightning_ddp": "lightning.pytorch",
    "deepspeed_zero": "deepspeed",
}  # fmt: skip
"""DeepSpeed is not among what the tests install: its program is run where somebody has."""

PROGRAMS = (*GRAPHS, "deepspeed_zero")

SHARED = {"digits", "load"}
"""What they import, and what reads their checkpoints."""

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="wants gloo"
)


def _installed(program: str) -> bool:
    return program not in NEEDS or importlib.util.find_spec(NEEDS[program].split(".")[0]) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the checkpoints."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    """What process 0 has found, by program."""
    pytest.importorskip("sklearn")
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ranks = (str(Path(__file__).with_name("example_ranks.py")), str(folder), *filter(_installed, PROGRAMS))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*start, *ranks], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = results_in(done.stdout)
    return found


@pytest.fixture(scope="module")
def loaded(folder: Path, told: dict[str, Any]) -> dict[str, float]:
    """The share of digits that each checkpoint gets right in eager, by the checkpoint's path in the folder."""
    files = (".metadata", "model.safetensors", "learner.ckpt", "pytorch_model.bin")
    places = [str(file.parent) for file in sorted(folder.glob("*/**/*")) if file.name in files]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        for name in [name for name in sys.modules if name.split(".")[0] == "smelt"]:
            patch.setitem(sys.modules, name, None)  # an import of it is an error meanwhile
        patch.syspath_prepend(str(FOLDER))
        patch.setattr(sys, "argv", ["load.py", *places])
        runpy.run_path(str(FOLDER / "load.py"), run_name="__main__")
    sys.modules.pop("digits")
    lines = (line.split(": right on digits that it has not seen: ") for line in out.getvalue().splitlines())
    return {str(Path(path).relative_to(folder)): float(share) for path, share in lines}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_trains_as_in_eager(told: dict[str, Any], program: str) -> None:
    if not _installed(program):
        pytest.skip(f"wants {NEEDS[program]}")
    found = told[program]
    assert len(found["eager"]) == STEPS and found["eager"][-1] < found["eager"][0] - 0.2
    assert found["smelt"] == pytest.approx(found["eager"], abs=2e-5)
    assert found["stats"]["fallbacks"] == 0
    if program in GRAPHS:
        assert (found["stats"]["graphs"], found["stats"]["breaks"]) == (GRAPHS[program], 0)


@pytest.mark.parametrize("place", ["titan/end" if each == "titan" else each for each in PROGRAMS])
def test_its_checkpoint_loads_without_smelt(loaded: dict[str, float], place: str) -> None:
    if not _installed(place):
        pytest.skip(f"wants {NEEDS[place]}")
    assert loaded[place] > 0.2  # after a few steps; a guess is right one time in ten


def test_training_goes_on_from_a_compiled_ones_checkpoint(told: dict[str, Any]) -> None:
    assert told["titan"]["resumed"] == pytest.approx(told["titan"]["eager"][STEPS // 2 :], abs=2e-5)


def test_each_program_is_named() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py")} - SHARED
    assert programs == {*PROGRAMS}
    for page in ("examples/README.md", "docs/distributed.md"):
        text = (ROOT / page).read_text()
        assert {name for name in programs if f"`{name}.py`" not in text} == set(), page
