"""Accelerate's functions for compiled models, in programs that know only `torch.compile`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch, smelt
from accelerate import Accelerator
from accelerate.utils import extract_model_from_parallel, is_compiled_module
smelt.install()
accelerator, model = Accelerator(cpu=True), torch.nn.Linear(2, 2)
compiled, wrapped = torch.compile(model), torch.compile(torch.nn.DataParallel(model))
assert is_compiled_module(compiled) and not is_compiled_module(model)
for unwrap in (extract_model_from_parallel, accelerator.unwrap_model):
    kept, plain = unwrap(wrapped, keep_torch_compile=True), unwrap(wrapped, keep_torch_compile=False)
    assert plain is model and kept._orig_mod is model and is_compiled_module(kept), (kept, plain)
    assert unwrap(compiled, keep_torch_compile=False) is model
"""


def test_models_compiled_after_install_are_known_and_unwrapped(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)
