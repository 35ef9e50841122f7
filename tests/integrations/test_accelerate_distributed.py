"""Accelerate's DDP and FSDP2 with compiled models, whole and by regions: two processes, run once for all tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import smelt

WAYS = ("whole", "regional")

PROGRAM = """
import json, os, sys
import accelerate, torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState
import smelt
from smelt.integrations.accelerate import SmeltPlugin
from tests.test_regions import TOKENS, Net

folder = sys.argv[1]

def prepared(kind, plugin):
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin)
    if kind == "fsdp2":  # Accelerate itself takes it on accelerators alone
        accelerator.state.distributed_type = accelerate.DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"],
            reshard_after_forward=True,
        )
    torch.manual_seed(2)
    original = Net(3)
    original.head.weight = torch.nn.Parameter(original.head.weight.detach().clone())
    optimizer = torch.optim.SGD(original.parameters(), lr=0.1)
    return accelerator, original, *accelerator.prepare(original, optimizer)

def trained(kind, plugin, place):
    accelerator, original, model, optimizer = prepared(kind, plugin)
    smelt.reset()
    losses = []
    batch = TOKENS[accelerator.process_index :: 2]
    for _ in range(3):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    kept, plain = accelerator.unwrap_model(model), accelerator.unwrap_model(model, keep_torch_compile=False)
    told = {
        "losses": losses, "graphs": smelt.stats()["graphs"], "fallbacks": smelt.stats()["fallbacks"],
        "kept": isinstance(kept, Net) and any(map(smelt.is_compiled, kept.modules())),
        "plain": plain is original and not any(map(smelt.is_compiled, plain.modules())),
        "kept keys": list(kept.state_dict()),
    }
    if kind == "ddp":
        accelerator.save_state(place + "/state")
        accelerator.save_model(model, place + "/model")
        accelerator.wait_for_everyone()
        want = model(batch).detach().clone()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        accelerator.load_state(place + "/state")
        told["loaded"] = torch.equal(model(batch), want)
        if accelerator.is_main_process:
            from safetensors.torch import load_file
            told["saved"] = list(load_file(place + "/model/model.safetensors"))
        accelerator.wait_for_everyone()
    return told

told = {"keys": list(Net(3).state_dict()), "eager": trained("ddp", None, folder + "/eager")}
for kind in ("ddp", "fsdp2"):
    for way in ("whole", "regional"):
        plugin = SmeltPlugin(use_regional_compilation=way == "regional")
        told[kind + " " + way] = trained(kind, plugin, f"{folder}/{kind}-{way}")
if os.environ["RANK"] == "0":
    print("told", json.dumps(told))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    root = str(Path(smelt.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": "",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2",
           "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    for name in list(env):
        if name.startswith("ACCELERATE_"):
            del env[name]
    env["ACCELERATE_USE_CPU"] = "true"
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    running = [
        subprocess.Popen(
            command, env={**env, "RANK": r, "LOCAL_RANK": r}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for r in "01"
    ]
    try:
        (out, error), (_, other) = (process.communicate(timeout=300) for process in running)
    finally:
        for process in running:
            process.kill()
    assert running[0].returncode == running[1].returncode == 0, error + other
    (line,) = (line for line in out.splitlines() if line.startswith("told "))
    result: dict[str, Any] = json.loads(line.removeprefix("told "))
    return result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_losses_are_those_of_eager(told: dict[str, Any], kind: str, way: str) -> None:
    """Under FSDP2 they are only where the hooks of the blocks have fired: without, parameters are shards."""
    got = told[f"{kind} {way}"]
    assert got["losses"] == pytest.approx(told["eager"]["losses"], rel=1e-5)
    assert got["graphs"] >= 1 and got["fallbacks"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_models_are_unwrapped(told: dict[str, Any], way: str) -> None:
    for kind in ("ddp", "fsdp2"):
        got = told[f"{kind} {way}"]
        assert got["kept keys"] == told["keys"]
    got = told[f"ddp {way}"]
    assert got["kept"] and got["plain"]


@pytest.mark.parametrize("way", WAYS)
def test_states_are_saved_and_loaded(told: dict[str, Any], way: str) -> None:
    got = told[f"ddp {way}"]
    assert got["loaded"] and set(got["saved"]) == set(told["keys"])
