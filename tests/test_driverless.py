"""Graphs on "cuda" without a GPU: tests/driverless runs in a process whose CUDA runtime is `runtime.c`.

Only a PyTorch that is built for CUDA can do it, with the headers that Triton brings. Metadata, traces and graphs are
right there, values of CUDA tensors are not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent / "driverless"
START = "import torch; (torch.zeros(2, device='cuda', requires_grad=True) * 2).sum().backward()"


def headers() -> list[Path]:
    """CUDA's headers, without an import of Triton: those of the runtime that PyTorch came with, which may be newer than
    the ones that Triton brings, and what only these have."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "backends/nvidia/include"
    own = sorted(folder.parents[3].glob(f"nvidia/cu{(torch.version.cuda or '').split('.')[0]}/include"))
    return [*own, folder] if (folder / "driver_types.h").exists() else []


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with that runtime."""
    include, compiler = headers(), shutil.which("gcc") or shutil.which("cc")
    if torch.version.cuda is None or not include or compiler is None:
        pytest.skip("needs a PyTorch for CUDA, Triton's headers and a C compiler")
    major, minor = map(int, torch.version.cuda.split(".")[:2])
    library = tmp_path_factory.mktemp("driverless") / "libdriverless.so"
    # with the driver's own name, for code that loads the driver by it
    flags = ["-shared", "-fPIC", f"-DVERSION={major * 1000 + minor * 10}", "-Wl,-soname,libcuda.so.1"]
    flags += [f"-I{folder}" for folder in include]
    subprocess.run([compiler, *flags, "-o", str(library), str(FOLDER / "runtime.c"), "-ldl"], check=True)
    env = os.environ | {"LD_PRELOAD": str(library), "SMELT_TESTS_DRIVERLESS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    started = subprocess.run([sys.executable, "-c", START], env=env, capture_output=True, text=True)
    if started.returncode:
        pytest.skip(f"this PyTorch does not start on it: {started.stderr[-300:]}")
    return env


def test_cuda_graphs(environment: dict[str, str]):
    arguments = ["-m", "pytest", str(FOLDER), "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
