"""Contenders that misbehave in known ways, named `tests.bench.contenders:NAME` to the bench."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smelt.bench.workload import Settings


def identity(model: nn.Module, settings: Settings) -> Any:
    """A right one."""
    return model


def wrong(model: nn.Module, settings: Settings) -> Any:
    """Perturbs one gradient by one part in a hundred: the first to arrive that is not nearly zero.

    Under autocast by a half: bfloat16 hides less than that.
    """
    perturbed, factor = False, 1.5 if settings.precision == "amp" else 1.01

    def perturb(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal perturbed
        if perturbed or not gradient.numel() or gradient.to_dense().norm() < 1e-4:
            return gradient
        perturbed = True
        return gradient * factor

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(perturb)
    return model


def refusing(model: nn.Module, settings: Settings) -> Any:
    """Raises when it should compile."""
    raise RuntimeError("cannot compile this")


def crashing(model: nn.Module, settings: Settings) -> Any:
    """Takes the process down."""
    os.abort()


def hanging(model: nn.Module, settings: Settings) -> Any:
    """Never comes back."""
    time.sleep(3600)


def late(model: nn.Module, settings: Settings) -> Any:
    """Starts well, then takes the process down after the steps that a start needs."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 6:
            os.abort()
        return model(*args, **kwargs)

    return call


def reporting(model: nn.Module, settings: Settings) -> Any:
    """Writes down which parts of smelt its process has imported."""
    loaded = [name for name in sys.modules if name.startswith("smelt.")]
    Path(os.environ["SMELT_TEST_REPORT"]).write_text(json.dumps(loaded))
    return model


def greedy(model: nn.Module, settings: Settings) -> Any:
    """Takes memory until it is stopped."""
    kept = []
    while True:
        kept.append(bytearray(b"x" * (50 << 20)))
        time.sleep(0.02)


def telling(model: nn.Module, settings: Settings) -> Any:
    """Writes down its process and torch's threads in it."""
    Path(os.environ["SMELT_TEST_REPORT"]).write_text(f"{os.getpid()} {torch.get_num_threads()}")
    return model


def shifting(function: Any, settings: Settings) -> Any:
    """Gives results of a function that are wrong by a tenth."""
    return lambda *inputs: function(*inputs) * 1.1


def fails_on_the_last_rank(model: nn.Module, settings: Settings) -> Any:
    """Raises on the last rank of several; the others wait for it in their first collective."""
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        raise RuntimeError("planted")
    return model
