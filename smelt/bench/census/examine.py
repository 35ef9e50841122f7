"""Examines one architecture in one process: build it, run it in eager, run its captured forward, compare, count breaks.

Each mode (eval without gradients, train with dropout as it is) runs twice in eager and twice captured, from equal
seeds, on copies of the model. The second run shows whether the guards of the first one still hold.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from smelt.bench.census.compare import differences
from smelt.bench.contenders import compiler_counts, load_compiler
from smelt.bench.randomness import random_states, seed_everything
from smelt.bench.workload import Batch

MODES = ("eval", "train")
SEED = 7
RUNS = 2
MIN_SHARED_PARAMETERS = 50_000_000
"""Minimum number of parameters of a model at which its copies share the parameters."""


class EagerFails(Exception):
    """Raised when the library's model cannot be built or run in eager, so that there is nothing to capture."""


@dataclass(frozen=True)
class Subject:
    """A model with inputs that it accepts; `kind` is the model's class or family, `shape` describes the inputs."""

    model: nn.Module
    batch: Batch
    kind: str
    shape: str


@dataclass(frozen=True)
class Ran:
    """The results of RUNS forward calls of eager or of the captured model."""

    outputs: list[Any]
    buffers: dict[str, torch.Tensor]
    random: list[Any]


def examine(build: Callable[[], Subject], phase: Callable[[str], None]) -> dict[str, Any]:
    """Returns the outcome of each mode as plain values; see `results.Outcome`.

    Args:
        phase: called with the current phase ("eager", "capture"), which the parent reports if this process is killed.

    Raises:
        EagerFails: the model cannot be built, or eager runs it in no mode.
    """
    warnings.simplefilter("ignore")
    phase("eager")
    seed_everything(SEED)
    try:
        subject = build()
    except Exception as error:
        raise EagerFails(brief(error)) from error
    modes = {mode: examine_mode(subject, mode, phase) for mode in MODES}
    if all(found["status"] == "eager_fails" for found in modes.values()):
        raise EagerFails(modes["eval"]["error"])
    return {"kind": subject.kind, "shape": subject.shape, "modes": modes}


def examine_mode(subject: Subject, mode: str, phase: Callable[[str], None]) -> dict[str, Any]:
    """Examine one mode; returns its status, counts and reasons as plain values."""
    phase("eager")
    try:
        expected = run(mirror(subject.model), subject.batch, mode)
    except Exception as error:
        return {"status": "eager_fails", "error": brief(error)}
    phase("capture")
    smelt = load_compiler()
    smelt.reset()
    model = mirror(subject.model)
    counted: list[dict[str, Any]] = []

    def compiled(original: nn.Module) -> Callable[..., Any]:
        call = smelt.compile(original, backend="eager")

        def counting(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            counted.append(compiler_counts("smelt"))
            return result

        return counting

    try:
        actual = run(model, subject.batch, mode, compiled)
    except Exception as error:
        return {"status": "error", "error": brief(error)}
    counts = counted[0]
    found = {
        "graphs": counts["graphs"],
        "breaks": counts["breaks"],
        "reasons": counts["break_reasons"],
        "recompiles": counted[-1]["graphs"] - counts["graphs"],
    }
    broken = bool(counts["breaks"] or counts["graphs"] != 1)
    wrong = compare(expected, actual)
    if wrong:
        repeated = compare(expected, run(mirror(subject.model), subject.batch, mode))
        if repeated:
            return {"status": "eager_fails", "error": f"eager does not repeat itself: {repeated[0]}"}
        if not compare_compiling(subject, mode, actual):
            return {"status": "breaks" if broken else "forks", "error": "; ".join(wrong), **found}
        return {"status": "wrong", "error": "; ".join(wrong), **found}
    return {"status": "breaks" if broken else "whole", **found}


def compare_compiling(subject: Subject, mode: str, actual: Ran) -> list[str]:
    """Returns the differences from eager when `torch.compiler.is_compiling()` is true in both; an error is one
    difference.

    Libraries then take other paths (with masks that are otherwise left out, without loops), whose results may differ
    from the usual ones; the captured model follows these paths.
    """
    before = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True
    try:
        return compare(run(mirror(subject.model), subject.batch, mode), actual)
    except Exception as error:
        return [brief(error)]
    finally:
        torch.compiler.is_compiling = before


def run(model: nn.Module, batch: Batch, mode: str, compile: Callable[[nn.Module], Any] | None = None) -> Ran:
    """Make RUNS forward calls from one seed; returns their results."""
    call = model.train(mode == "train") if compile is None else compile(model.train(mode == "train"))
    outputs = []
    for number in range(RUNS):
        inputs = batch.clone()
        seed_everything(SEED + number)
        with torch.set_grad_enabled(mode == "train"):
            outputs.append(call(*inputs.args, **inputs.kwargs))
    return Ran(outputs, dict(model.named_buffers()), random_states())


def compare(expected: Ran, actual: Ran) -> list[str]:
    """Returns the differences between the results of eager and of the captured model."""
    return (
        differences(expected.outputs, actual.outputs)
        + differences(expected.buffers, actual.buffers, "buffers")
        + differences(expected.random, actual.random, "random state")
    )


def mirror(model: nn.Module) -> nn.Module:
    """Copy the model. The copy of a large model shares its parameters: only some small models write to their
    parameters.
    """
    large = sum(p.numel() for p in model.parameters()) > MIN_SHARED_PARAMETERS
    return copy.deepcopy(model, {id(p): p for p in model.parameters()} if large else None)


def brief(error: BaseException) -> str:
    """Describe an error in one line of a few hundred characters, without addresses and folders."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"/\S*/", "", text))[:400]
