"""Accelerate compiles by smelt, and what it offers for compiled models works with them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
from torch import nn

import smelt
from smelt.integrations.accelerate import SmeltPlugin
from smelt.integrations.patches import take_named
from tests.test_regions import TOKENS, Net


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("ACCELERATE_"):
            monkeypatch.delenv(name)
    take_named()
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def trained(plugin: Any, **kwargs: Any) -> tuple[list[float], nn.Module]:
    torch.manual_seed(2)
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin, **kwargs)
    model = Net(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader([TOKENS[i % 3] for i in range(8)], batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for _ in range(2):
        for batch in data:
            with accelerator.accumulate(model):
                loss = model(batch).float().square().mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss))
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return losses, model


@pytest.mark.parametrize("regional", [False, True])
@pytest.mark.parametrize("kwargs", [{}, {"mixed_precision": "bf16"}, {"gradient_accumulation_steps": 2}], ids=str)
def test_training(regional: bool, kwargs: dict[str, Any]) -> None:
    got, model = trained(SmeltPlugin(use_regional_compilation=regional), **kwargs)
    graphs = smelt.stats()["graphs"]
    want, _ = trained(None, **kwargs)
    tolerance = 1e-2 if kwargs.get("mixed_precision") else 1e-5
    assert got == pytest.approx(want, rel=tolerance)
    assert smelt.stats()["graphs"] == graphs and 0 < graphs <= 5 and smelt.stats()["fallbacks"] == 0
    assert isinstance(model, Net)
    assert accelerate.utils.has_compiled_regions(model) if regional else accelerate.utils.is_compiled_module(model)
    assert not any("_orig_mod" in name for name in model.state_dict())


@pytest.mark.parametrize("regional", [False, True])
def test_models_are_unwrapped_and_saved(regional: bool, tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, dynamo_plugin=SmeltPlugin(use_regional_compilation=regional))
    original = Net(3)
    model = accelerator.prepare(original)
    model(TOKENS)
    assert accelerator.unwrap_model(model, keep_torch_compile=False) is original
    assert accelerator.unwrap_model(model) is model
    assert accelerate.utils.extract_model_from_parallel(model, keep_torch_compile=False) is original
    assert accelerator.prepare_model(model) is model or regional
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.save_model(model, str(tmp_path / "model"))
    before = copy.deepcopy(original.state_dict())
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.zero_()
    accelerator.load_state(str(tmp_path / "state"))
    torch.testing.assert_close(dict(original.state_dict()), dict(before))
    torch.testing.assert_close(model(TOKENS), original(TOKENS))
    plain = Net(3)
    accelerate.load_checkpoint_in_model(plain, str(tmp_path / "model"))
    torch.testing.assert_close(dict(plain.state_dict()), dict(before))


def test_regions_by_accelerates_own_function() -> None:
    model = Net(6)
    run = accelerate.utils.compile_regions(model, backend="smelt", fullgraph=True)
    torch.testing.assert_close(run(TOKENS), model(TOKENS))
    assert (
        smelt.stats()["graphs"] == 4
        and accelerate.utils.has_compiled_regions(run)
        and not accelerate.utils.has_compiled_regions(model)
    )


def test_the_environment_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "reduce-overhead")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "True")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "True")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "False")  # `accelerate launch` always sets it
    plugin = SmeltPlugin()
    assert plugin.use_regional_compilation
    assert plugin.to_kwargs() == {
        "backend": "smelt", "mode": "reduce-overhead", "fullgraph": True, "dynamic": None, "options": None,
        "disable": False,
    }  # fmt: skip
    assert SmeltPlugin(dynamic=False).dynamic is False
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "True")
    assert SmeltPlugin().dynamic is True


def test_the_backend_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        DynamoBackend("SMELT").value == "SMELT" and TorchDynamoPlugin(backend="smelt").to_dict()["backend"] == "smelt"
    )
    accelerator = Accelerator(cpu=True, dynamo_backend="smelt")
    assert smelt.is_compiled(accelerator.prepare(Net(2)))
    AcceleratorState._reset_state()
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "smelt")
    assert smelt.is_compiled(Accelerator(cpu=True).prepare(Net(2)))


def test_bad_input() -> None:
    with pytest.raises(smelt.OptionError, match="fastest"):
        SmeltPlugin(mode="fastest")
    with pytest.raises(smelt.OptionError):
        SmeltPlugin(mode="default", options={"recompile_limit": 3})
    with pytest.raises(smelt.OptionError, match="no_such"):
        SmeltPlugin(options={"no_such": 3})
    assert SmeltPlugin(options={"recompile_limit": 3}).to_kwargs()["mode"] is None
    with pytest.raises(AttributeError, match="compile the other"):
        smelt.compile(Net(2))._orig_mod = Net(2)
    accelerator = Accelerator(cpu=True, dynamo_plugin=SmeltPlugin(disable=True))
    assert not smelt.is_compiled(accelerator.prepare(Net(2)))


def test_without_accelerate_the_error_names_what_to_install() -> None:
    code = "import sys; sys.modules['accelerate'] = None; import smelt.integrations.accelerate"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "pip install accelerate" in done.stderr


LAUNCHED = """
import torch
from accelerate import Accelerator
import smelt
from smelt.integrations.accelerate import SmeltPlugin

accelerator = Accelerator(cpu=True, dynamo_plugin=SmeltPlugin())
model = accelerator.prepare(torch.nn.Linear(4, 4))
for n in (2, 3, 4, 5):
    accelerator.backward(model(torch.ones(n, 4)).sum())
print("compiled", smelt.is_compiled(model), smelt.stats()["graphs"], accelerator.state.dynamo_plugin.dynamic)
"""


def test_launched_programs(tmp_path: Path) -> None:
    """The launcher says that sizes are static unless it was asked otherwise: each size would be a graph of its own."""
    (tmp_path / "script.py").write_text(LAUNCHED)
    settings = ("compute_environment: LOCAL_MACHINE", "distributed_type: 'NO'", "use_cpu: true", "num_processes: 1")
    (tmp_path / "config.yaml").write_text("\n".join((*settings, "mixed_precision: 'no'", "")))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "config.yaml", "script.py"]
    env = {**os.environ, "PYTHONPATH": str(Path(smelt.__file__).parent.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "compiled True 2 None" in done.stdout
