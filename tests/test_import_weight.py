"""`import smelt` loads its own modules and nothing heavy: each library more costs every program memory and time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOADED = """
import json, sys
import torch
before = set(sys.modules)
import smelt
print(json.dumps(sorted(set(sys.modules) - before)))
"""

COMPILED = """
import json, sys
import torch
before = set(sys.modules)
import smelt
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
compiled = smelt.compile(model)
compiled(torch.ones(2, 3)).sum().backward()
assert model[0].weight.grad is not None and smelt.stats()["graphs"] == 1
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("program", [LOADED, COMPILED], ids=["import", "training step"])
def test_nothing_but_smelt_torch_numpy_and_the_standard_library_is_loaded(program: str) -> None:
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = json.loads(shown.splitlines()[-1])
    # the compiler is imported when it is asked for: who loads an artefact does without
    assert ("smelt.pipeline" in loaded) == (program == COMPILED) and "smelt.base.store" in loaded
    names = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    # How Python was built, and what the parts of numpy.random share:
    strangers = [name for name in names if not name.startswith("_sysconfigdata") and "cython" not in name]
    assert set(strangers) <= {"smelt", "torch", "numpy"}
    heavy = ("torch._dynamo", "torch._inductor", "torch._export", "torch.onnx", "decimal")
    other_target = ("smelt.codegen.triton", "smelt.runtime.triton", "smelt.runtime.cuda", "smelt.page")
    assert [name for name in loaded if name.startswith(heavy + other_target)] == []


def test_the_compiler_is_imported_without_collections() -> None:
    """Its half a million objects all live on; beside a model's, each search among them took a fifth of a second."""
    program = (
        "import gc, smelt; number = lambda: sum(each['collections'] for each in gc.get_stats()); before = number(); "
        "smelt.compile; print(gc.isenabled(), number() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    enabled, collections = ended.stdout.split()
    assert enabled == "True" and int(collections) < 10  # those that are due at the end; unpaused, over a hundred
