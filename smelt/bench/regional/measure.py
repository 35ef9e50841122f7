"""The measurements of one row: the first pass of a contender, or passes of several in turn.

A pass is what Accelerate measures: forward with gradients switched on, without a cache of keys, 128 tokens. With
`train` backward follows, and the gradients are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smelt.base.errors import unknown_name
from smelt.bench.contenders import compiler_counts, find_contender
from smelt.bench.meter import meter_of
from smelt.bench.processes.turns import alone
from smelt.bench.regional.models import find_decoder
from smelt.bench.workload import Settings

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

SEED = 0

WARMUP = 3
"""Passes before the first that is timed."""


def chosen_dtype(name: str | None, device: str) -> str:
    """The given name, else the usual one for the device.

    Raises:
        OptionError: an unknown name.
    """
    if name is not None and name not in DTYPES:
        raise unknown_name("dtype", name, tuple(DTYPES))
    return name or ("fp32" if device == "cpu" else "fp16")


@dataclass(frozen=True)
class Passes:
    """How a model is run: plain values, which are sent to a measuring process.

    Args:
        batch: sequences of `length` tokens.
        train: backward follows each forward.
        dtype: of the parameters, a name of DTYPES.
    """

    batch: int
    length: int = 128
    train: bool = False
    dtype: str = "fp32"
    device: str = "cpu"

    def settings(self) -> Settings:
        """The settings for contenders. TF32 is allowed, as in the published table."""
        return Settings(train=self.train, device=self.device, precision="tf32", dynamic=None)

    def made(self, model: str) -> tuple[nn.Module, Tensor]:
        """The model, and tokens of shape (batch, length) on its device."""
        torch.manual_seed(SEED)
        decoder = find_decoder(model)
        built = decoder.build().to(self.device, DTYPES[self.dtype])
        return built, torch.randint(0, decoder.vocabulary, (self.batch, self.length), device=self.device)

    def pass_of(self, model: nn.Module, compiled: Callable[..., Any], tokens: Tensor) -> Callable[[], Tensor]:
        """One pass; it gives the logits, of shape (batch, length, vocabulary)."""

        def forward() -> Tensor:
            logits: Tensor = compiled(input_ids=tokens, use_cache=False).logits
            return logits

        def step() -> Tensor:
            logits = forward()
            logits.float().square().mean().backward()
            model.zero_grad(set_to_none=True)
            return logits

        return step if self.train else forward


def first_pass(model: str, contender: str, passes: Passes) -> dict[str, Any]:
    """Seconds from the built model to the end of the first pass, with the import of the compiler."""
    built, tokens = passes.made(model)
    meter = meter_of(passes.device)
    meter.wait_for_device()
    begin = time.perf_counter()
    compiled = find_contender(contender)(built, passes.settings())
    passes.pass_of(built, compiled, tokens)()
    meter.wait_for_device()
    return {"cold_s": time.perf_counter() - begin, "counts": compiler_counts(contender)}


def passes_in_turn(model: str, contenders: Sequence[str], passes: Passes, rounds: int) -> dict[str, Any]:
    """Seconds of each pass, contenders taking turns (A B C A B C), and how far each one's logits are from the first's.

    They share the parameters, which no pass changes. `error` is the largest difference, relative to the largest logit.
    """
    built, tokens = passes.made(model)
    meter = meter_of(passes.device)
    calls: dict[str, Callable[[], Tensor]] = {}
    found: dict[str, dict[str, Any]] = {}
    expected = None
    for name in contenders:
        compiled = built if name == "eager" else find_contender(name)(built, passes.settings())
        calls[name] = passes.pass_of(built, compiled, tokens)
        for _ in range(WARMUP):
            logits = calls[name]().detach()
        expected = logits.clone() if expected is None else expected
        error = float((logits.float() - expected.float()).abs().max() / expected.float().abs().max())
        found[name] = {"seconds": [], "error": error}
    with alone():
        for _ in range(rounds):
            for name, call in calls.items():
                found[name]["seconds"].append(meter.seconds(call))
    return found
