"""Assemblers that hang: Triton kernels have a time limit too, nothing outlives the process or stays in its place."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")

CODE = """
import sys
from smelt.runtime.triton.pool import pool
SOURCE = '''
import triton
import triton.language as tl
@triton.jit
def kernel(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
'''
request = dict(source=SOURCE, signature=[["x", "*fp32"], ["n", "i32"]], divisible=["x"], constants=[["B", 128]],
               num_warps=4, num_stages=2, arch=80, contract=False, flushes=False, name="k")
head, image = pool().submit(request).result()
print(head.get("error"), len(image) > 0, flush=True)
"""


def assembler(folder: Path, seconds: float) -> Path:
    """One that touches a file again and again while it is at work, for so long."""
    path = folder / "ptxas"
    loop = f"i=0; while [ $i -lt {int(seconds * 10)} ]; do touch {folder}/mark; sleep 0.1; i=$((i+1)); done"
    version = 'case "$*" in *--version*) echo "Cuda compilation tools, release 12.8, V12.8.93"; exit 0;; esac'
    path.write_text(f"#!/bin/sh\n{version}\n{loop}\n")
    path.chmod(0o755)
    return path


def program(folder: Path, seconds: float, limit_s: float) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir()
    variables = {
        **os.environ,
        "TRITON_PTXAS_PATH": str(assembler(folder, seconds)),
        "SMELT_BUILD_TIMEOUT_S": str(limit_s),
        "TMPDIR": str(folder / "tmp"),
        "HOME": str(folder),
        "SMELT_CACHE_DIR": str(folder / "cache"),
    }
    return subprocess.Popen([sys.executable, "-c", CODE], env=variables, stdout=subprocess.PIPE, text=True)


def is_at_work(folder: Path) -> bool:
    (folder / "mark").unlink(missing_ok=True)
    time.sleep(1.0)
    return (folder / "mark").exists()


def test_an_assembler_that_hangs_is_ended(tmp_path: Path) -> None:
    process = program(tmp_path, 200.0, 2.0)
    said, _ = process.communicate(timeout=150)
    assert said == "it was not built within 2 s; SMELT_BUILD_TIMEOUT_S allows more False\n"
    assert not is_at_work(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / ".triton").exists()  # nothing goes into Triton's own cache


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_assembler_outlives_its_process(tmp_path: Path, how: int) -> None:
    process = program(tmp_path, 200.0, 100.0)
    while not (tmp_path / "mark").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    process.communicate(timeout=60)
    time.sleep(0.5)
    assert not is_at_work(tmp_path)
