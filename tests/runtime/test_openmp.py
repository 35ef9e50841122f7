"""Kernels use the thread pool that torch uses, whichever other OpenMP runtimes the program has loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from smelt.runtime import openmp
from smelt.runtime.openmp import loaded_runtimes, torch_openmp

PROGRAM = """
import ctypes, sys
import torch
ctypes.CDLL(sys.argv[1])
from smelt.runtime.openmp import loaded_runtimes, torch_openmp
print(torch_openmp(), *loaded_runtimes(), sep="\\n")
import smelt
function = smelt.compile(lambda x: (x.exp() + 1).sum(1))
assert torch.allclose(function(torch.ones(300, 400)), (torch.ones(300, 400).exp() + 1).sum(1))
text = open("/proc/self/maps").read()
print(text.count(sys.argv[1]) > 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("folder", ["other.libs", "torch/other.libs", "torch/lib"])
@pytest.mark.parametrize("name", ["libgomp-e985bcbb.so.1.0.0", "libgomp.so.1", "libiomp5.so"])
def test_a_second_runtime_is_not_mistaken_for_that_of_torch(tmp_path: Path, folder: str, name: str) -> None:
    """Scikit-learn's wheel brings one; the virtual environment may lie in a folder whose name is torch."""
    own = torch_openmp()
    if own is None:
        pytest.skip("this torch has no OpenMP")
    decoy = tmp_path / folder / name
    decoy.parent.mkdir(parents=True)
    shutil.copy(own, decoy)
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(decoy)], capture_output=True, text=True, check=True)
    found, *runtimes, _ = ended.stdout.splitlines()
    assert found == str(own) and set(runtimes) == {str(own), str(decoy)}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_where_the_loader_cannot_be_asked_it_is_the_one_in_the_folder_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch_openmp()
    if own is None or Path(torch.__file__).parent not in own.parents:
        pytest.skip("torch uses a runtime that lies elsewhere")
    decoy = Path("/elsewhere/torch/libgomp-1.so.1")
    runtimes = loaded_runtimes()
    monkeypatch.setattr(openmp, "_bound_by_torch", lambda: None)
    monkeypatch.setattr(openmp, "loaded_runtimes", lambda: [decoy, *runtimes])
    assert torch_openmp.__wrapped__() == own
