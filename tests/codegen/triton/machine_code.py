"""What a kernel is on compute capability 9.0: its instructions, as cuobjdump prints them. No GPU is needed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton

from smelt.abi.kernel_source import KernelSource
from smelt.runtime.triton.build import build

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def instructions(source: KernelSource, folder: Path) -> list[str]:
    """The instructions of the first configuration, with modifiers and without operands."""
    cubin = build(source, source.configs[0], 90).result()
    if not TOOL.exists():
        pytest.skip("this Triton has no cuobjdump")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin.image)
    text = subprocess.run([TOOL, "-sass", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*)", text)
    return [name for name in found if name != "NOP"]


def widths(names: list[str], kind: str) -> set[str]:
    """The sizes in bits of the loads (LDG) or stores (STG) among instructions, as text; 32 is not named."""
    return {(re.findall(r"\.(U8|S8|U16|S16|64|128)\b", name) or ["32"])[0] for name in names if name.startswith(kind)}
