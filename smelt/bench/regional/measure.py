"""The measurements of one row: the first pass of a contender, or passes of several contenders in turn.

A pass is the same as in Accelerate's measurement: a forward of 128 tokens with gradients enabled, without a key cache.
With `train` a backward follows, and the gradients are dropped.
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
"""Number of passes before the first timed pass."""


def chosen_dtype(name: str | None, device: str) -> str:
    """Returns the given name of a dtype, or the device's default.

    Raises:
        OptionError: the name is unknown.
    """
    if name is not None and name not in DTYPES:
        raise unknown_name("dtype", name, tuple(DTYPES))
    return name or ("fp32" if device == "cpu" else "fp16")


@dataclass(frozen=True)
class Passes:
    """The settings of a model's passes: plain values, which are sent to a measuring process.

    Args:
        batch: number of sequences of `length` tokens.
        train: whether a backward follows each forward.
        dtype: dtype of the parameters, a name of DTYPES.
    """

    batch: int
    length: int = 128
    train: bool = False
    dtype: str = "fp32"
    device: str = "cpu"

    def settings(self) -> Settings:
        """Returns the settings for contenders. TF32 is allowed, as in the published table."""
        return Settings(train=self.train, device=self.device, precision="tf32", dynamic=None)

    def made(self, model: str) -> tuple[nn.Module, Tensor]:
        """Make the model, and tokens of shape (batch, length) on its device."""
        torch.manual_seed(SEED)
        decoder = find_decoder(model)
        built = decoder.build().to(self.device, DTYPES[self.dtype])
        return built, torch.randint(0, decoder.vocabulary, (self.batch, self.length), device=self.device)

    def pass_of(self, model: nn.Module, compiled: Callable[..., Any], tokens: Tensor) -> Callable[[], Tensor]:
        """Returns a function that makes one pass and returns the logits, of shape (batch, length, vocabulary)."""

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
    """Measure the seconds from the built model to the end of the first pass, with the import of the compiler."""
    built, tokens = passes.made(model)
    meter = meter_of(passes.device)
    meter.wait_for_device()
    begin = time.perf_counter()
    compiled = find_contender(contender)(built, passes.settings())
    passes.pass_of(built, compiled, tokens)()
    meter.wait_for_device()
    return {"cold_s": time.perf_counter() - begin, "counts": compiler_counts(contender)}


def passes_in_turn(model: str, contenders: Sequence[str], passes: Passes, rounds: int) -> dict[str, Any]:
    """Time passes of the contenders in turn (A B C A B C), and compare each contender's logits with those of the first.

    The contenders share the parameters, which no pass changes. `error` is the largest difference of the logits,
    relative to the largest logit.
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
