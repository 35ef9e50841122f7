"""Launches of Triton kernels are nodes of the graph, with their writes (in Triton's interpreter: no GPU is needed)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "triton_program.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_stay_in_the_graph():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    backends = ("eager", "aot_eager", "smelt")
    found = subprocess.run(
        [sys.executable, str(PROGRAM), *backends], env=environment, capture_output=True, text=True, timeout=300
    )
    assert found.stdout == "".join(f"{backend} is fine\n" for backend in backends), found.stderr
