"""The programs in examples/ run as they are."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import smelt

FOLDER = Path(__file__).parents[1] / "examples"
NEEDS = {
    "aot.py": ("sklearn",),
    "accelerate_regions.py": ("accelerate", "sklearn"),
    "diffusers_unet.py": ("diffusers", "sklearn"),
    "lightning_trainer.py": ("lightning.pytorch",),
    "lora.py": ("peft", "transformers"),
    "plain_loop.py": ("sklearn",),
    "whole_step.py": ("sklearn",),
}
ALONE = {"trainer.py"}
"""Those with a test of their own."""


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    smelt.uninstall()
    state = sys.modules.get("accelerate.state")
    for name in ("AcceleratorState", "GradientState", "PartialState") if state is not None else ():
        getattr(state, name)._reset_state()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({path.name for path in FOLDER.glob("*.py")} - ALONE))
def test_it_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    assert f"`{name}`" in (FOLDER / "README.md").read_text()
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out
    assert smelt.stats()["fallbacks"] == 0 and smelt.stats()["graphs"] > 0 or name == "custom_backend.py"


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("sklearn")
    assert "`tutorial.ipynb`" in (FOLDER / "README.md").read_text()
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(FOLDER / "tutorial.ipynb", 4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    told = str([output for cell in notebook.cells for output in cell.get("outputs", ())])
    assert "a call of time.sleep" in told and "see docs/errors/unsupported.md" in told


def test_every_door_has_an_example() -> None:
    doors = "plain_loop whole_step accelerate_regions trainer lightning_trainer diffusers_unet lora custom_backend aot"
    assert {*doors.split()} - {path.stem for path in FOLDER.glob("*.py")} == set()


SCHEMAS = "from smelt.bench.torchvision_schemas import define_torchvision_schemas as define; define()"
"""transformers imports torchvision, which not every build of torch has the operators for."""


def losses(*command: str) -> tuple[list[float], str]:
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("losses "))
    return [float(word) for word in line.split()[1:]], done.stderr


def test_the_trainer_learns_under_smelt_run_as_in_eager() -> None:
    pytest.importorskip("transformers")
    script = str(FOLDER / "trainer.py")
    plain = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    want, _ = losses("-c", f"{SCHEMAS}; {plain}", script, "--eager")
    got, told = losses("-c", f"{SCHEMAS}; from smelt.cli.main import app; app()", "run", script)
    assert got == pytest.approx(want, rel=1e-3) and len(got) == 12 and got[-1] < got[0]
    assert "smelt: 1 graph, 0 breaks, 0 recompiles, 0 fallbacks" in told
