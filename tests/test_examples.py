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
BESIDE_EAGER = {"trainer.py": "transformers", "lightning_bert.py": "lightning.pytorch"}
"""Those with a test of their own, and the package of each."""

SHARED = {"bert_text.py"}
"""What other examples import."""


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    smelt.uninstall()
    state = sys.modules.get("accelerate.state")
    for name in ("AcceleratorState", "GradientState", "PartialState") if state is not None else ():
        getattr(state, name)._reset_state()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({path.name for path in FOLDER.glob("*.py")} - {*BESIDE_EAGER, *SHARED}))
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


def beside_eager(script: str, folder: Path) -> tuple[dict[str, str], str]:
    """What `--compare` of an example prints, by the first two words of its lines, and what smelt says of its run."""
    # transformers imports torchvision, which not every build of torch has the operators for
    schemas = "from smelt.bench.torchvision_schemas import define_torchvision_schemas as define; define()"
    (folder / "sitecustomize.py").write_text(schemas)
    path = os.pathsep.join((str(folder), str(FOLDER.parent)))
    env = {**os.environ, "PYTHONPATH": path, "TRANSFORMERS_VERBOSITY": "error", "SMELT_STRICT": "1"}
    command = [sys.executable, str(FOLDER / script), "--compare", "--tiny", "--rounds", "1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {" ".join(line.split()[:2]): line for line in done.stdout.splitlines()}, done.stderr


@pytest.mark.parametrize("script", BESIDE_EAGER)
def test_a_bert_learns_under_smelt_run_as_in_eager(script: str, tmp_path: Path) -> None:
    pytest.importorskip(BESIDE_EAGER[script])
    assert f"`{script}`" in (FOLDER / "README.md").read_text()
    lines, told = beside_eager(script, tmp_path)
    want, got = ([float(word) for word in lines[f"{name} losses"].split()[2:]] for name in ("eager", "smelt"))
    assert got == pytest.approx(want, rel=1e-4) and len(got) == 12 and got[-1] < got[0] - 0.1
    assert {"eager step", "smelt step"} < {*lines}
    breaks = "1 break" if script == "lightning_bert.py" else "0 breaks"
    assert f"smelt: 1 graph, {breaks}, 0 recompiles, 0 fallbacks" in told
    assert breaks == "0 breaks" or "LightningModule.log is disabled" in told
