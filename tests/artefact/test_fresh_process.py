"""An artefact in a fresh process, where nothing of the compiler can be imported and no C++ compiler is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import smelt
from tests.artefact.models import SET_ORDERS, Classifier, Output, many_kinds, scaled

ROOT = Path(__file__).parent.parent.parent

FORBIDDEN = """
import importlib.abc, sys

ALLOWED = {
    "smelt.capture._native", "smelt.capture.hook", "smelt.capture.core", "smelt.capture.guards.questions",
    "smelt.capture.python", "smelt.capture.python.readers",
    "smelt.capture.residual", "smelt.capture.residual.remade",
    "smelt.capture.residual.code_locations", "smelt.capture.core.compiler_marks",
    "smelt.capture.core.by_code",
    "smelt.capture.core.policy", "smelt.capture.guards", "smelt.capture.guards.calibrate", "smelt.capture.guards.flag",
    "smelt.autograd.trace.plan", "smelt.autograd.trace.rng",
}
REFUSED = (
    "smelt.capture.", "smelt.autograd.trace.", "smelt.autograd.partition", "smelt.graph.trace", "smelt.loops",
    "smelt.schedule", "smelt.codegen", "smelt.pipeline", "smelt.driver", "smelt.passes", "smelt.api", "smelt.ahead",
    "smelt.prims.decompose",
    "smelt.prims.rules", "torch._dynamo", "torch._inductor",
)

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(REFUSED) and name not in ALLOWED:
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, Refuse())
"""

MODEL = """
import torch, smelt
from tests.artefact.models import Classifier
torch.manual_seed(0)
model = Classifier()
compiled = smelt.load(sys.argv[1]).apply(model)
torch.manual_seed(1)
x, labels = torch.randn(5, 4), torch.randint(0, 3, (5,))
model.eval()
with torch.no_grad():
    want, have = model(x, labels), compiled(x, labels)
    assert type(have) is type(want)
    torch.testing.assert_close(have.logits, want.logits)
model.train()
out = compiled(x, labels)
out.loss.backward()
assert model.first.weight.grad is not None and float(out.loss) > 0
assert list(compiled.state_dict()) == list(model.state_dict()) and isinstance(compiled, Classifier)
try:
    compiled(torch.randn(6, 4), labels)
except smelt.SmeltError as error:
    assert "shape[0]: expected 5, got 6" in str(error), error
else:
    raise AssertionError("a call that does not fit")
print("calls", "graphs", smelt.stats()["graphs"], float(out.loss), float(model.first.weight.grad.sum()))
"""


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "CXX": "/nowhere/c++", "PATH": "/nowhere", **environment}
    command = [sys.executable, "-c", FORBIDDEN + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=settings, cwd=ROOT)


def test_a_model_in_training_and_inference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Classifier()
    specs = torch.empty(5, 4, device="meta"), torch.empty(5, dtype=torch.int64, device="meta")
    artefact = smelt.compile(model).aot_compile(*specs)
    model.eval()
    with torch.no_grad():
        artefact.add(*specs)
    artefact.save(tmp_path / "model.smelt")
    done = run(MODEL, str(tmp_path / "model.smelt"), SMELT_CACHE_DIR=str(tmp_path / "empty"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "calls graphs 0" in done.stdout

    model.train()
    torch.manual_seed(1)
    x, labels = torch.randn(5, 4), torch.randint(0, 3, (5,))
    out = smelt.compile(model)(x, labels)  # what is compiled at the first call draws the same numbers
    out.loss.backward()
    loss, total = map(float, done.stdout.split()[-2:])
    assert isinstance(out, Output) and loss == pytest.approx(float(out.loss)) and model.first.weight.grad is not None
    assert total == pytest.approx(float(model.first.weight.grad.sum()), rel=1e-4, abs=1e-5)


FUNCTION = """
import torch, smelt
from tests.artefact.models import scaled
compiled = smelt.load(sys.argv[1]).apply(scaled)
for rows in (3, 7, 64):
    x, y = torch.randn(rows, 4), torch.randn(4, 5)
    torch.testing.assert_close(compiled(x, y), scaled(x, y))
try:
    compiled(x, y.double())
except smelt.SmeltError as error:
    assert "dtype" in str(error), error
else:
    raise AssertionError("a call that does not fit")
original = smelt.load(sys.argv[1]).apply(scaled, otherwise="original")
torch.testing.assert_close(original(x.double(), y.double()), scaled(x.double(), y.double()))
print("done")
"""


def test_a_function_with_a_size_that_changes(tmp_path: Path) -> None:
    x = torch.empty(3, 4, device="meta")
    smelt.mark_dynamic(x, 0, min=1, max=64)
    smelt.compile(scaled).aot_compile(x, torch.empty(4, 5, device="meta")).save(tmp_path / "function.smelt")
    done = run(FUNCTION, str(tmp_path / "function.smelt"), SMELT_CACHE_DIR=str(tmp_path / "empty"))
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


KINDS = """
import torch, smelt
from tests.artefact.models import Named, many_kinds
compiled = smelt.load(sys.argv[1]).apply(many_kinds)
x = torch.randn(3)
(have, begun, table, found), (want, *_) = compiled(x, "ab"), many_kinds(x, "ab")
assert type(have) is Named and list(have) == ["y", "z"], have
torch.testing.assert_close(dict(have), dict(want))
assert list(begun) == [2, 3] and list(table) == [] and found.groups() == ("a", "b")
print("done")
"""


def test_results_of_many_kinds(tmp_path: Path) -> None:
    smelt.compile(many_kinds).aot_compile(torch.empty(3), "ab").save(tmp_path / "function.smelt")
    done = run(KINDS, str(tmp_path / "function.smelt"), SMELT_CACHE_DIR=str(tmp_path / "empty"))
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


def test_the_check_of_imports_refuses() -> None:
    done = run("import smelt\nsmelt.compile")
    assert done.returncode != 0 and "is not to be imported here" in done.stderr


ORDERS = """
import sys, torch, smelt
from tests.artefact.models import SET_ORDERS, in_set_order
for how in SET_ORDERS:
    torch.manual_seed(0)
    x, file = torch.randn(4), f"{sys.argv[2]}/{how}"
    if sys.argv[1] == "save":
        smelt.compile(in_set_order).aot_compile(x, how).save(file)
        continue
    want = in_set_order(x, how)
    try:
        have = smelt.load(file).apply(in_set_order)(x, how)
    except smelt.SmeltError as error:
        assert "tuple(sorted(...))" in str(error), str(error)
        print("refused", how)
    else:
        torch.testing.assert_close(have, want)
        print("taken", how)
"""


def test_the_order_of_a_set_is_never_that_of_another_process(tmp_path: Path) -> None:
    """Strings have other hashes in each process, so sets of them iterate in another order. An artefact fits if the
    program does not read this order."""
    free = {how for how in SET_ORDERS if how.startswith("free")}
    for seed, action in (("1", "save"), ("1", "load"), ("2", "load"), ("3", "load")):
        program = ORDERS if action == "save" else FORBIDDEN + ORDERS
        command = [sys.executable, "-c", program, action, str(tmp_path)]
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        if action == "load":
            taken = {line.removeprefix("taken ") for line in done.stdout.splitlines() if line.startswith("taken ")}
            assert taken == ({*SET_ORDERS} if seed == "1" else free)
