"""Measures the cost of a compiled call beyond its kernels: `x + 1`, the guards of BERT-base and of 48 small blocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from smelt.bench.contenders import find_contender, load_compiler
from smelt.bench.steps import build_batch, build_model
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


def add_one(x: Tensor) -> Tensor:
    """The smallest program that still runs a kernel."""
    return x + 1


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, measured in many short loops: their minimum, which other work on the machine disturbs least,
    and their median.
    """

    best_s: float
    median_s: float


LOOP_S = 1e-4
"""Minimum number of seconds of a loop: many times the clock's resolution, and short enough that some loops run
undisturbed.
"""


def seconds_per_call(call: Callable[[], Any], budget_s: float = 0.5) -> Timing:
    """Measure one call in loops for about `budget_s` seconds."""
    for _ in range(20):
        call()
    begin = time.perf_counter()
    call()
    number = max(1, int(LOOP_S / max(time.perf_counter() - begin, 1e-7)))
    found: list[float] = []
    end = time.perf_counter() + budget_s
    while not found or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(number):
            call()
        found.append((time.perf_counter() - begin) / number)
    return Timing(min(found), statistics.median(found))


def call_overhead(contender: str, budget_s: float = 0.5) -> dict[str, float]:
    """Returns the seconds per call of `x + 1` on eight numbers, compiled by the contender and in eager."""
    x = torch.ones(8)
    eager = seconds_per_call(lambda: add_one(x), budget_s)
    found = eager
    if contender != "eager":
        compiled = find_contender(contender)(add_one, Settings(train=False))  # type: ignore[arg-type]
        found = seconds_per_call(lambda: compiled(x), budget_s)
    return {"call_s": found.best_s, "call_median_s": found.median_s, "eager_call_s": eager.best_s}


def replay(gm: fx.GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A backend whose graph runs once and then returns the same result, so that a call costs only the overhead."""
    kept: list[Any] = []

    def call(*inputs: Tensor) -> Any:
        if not kept:
            kept.append(gm(*inputs))
        return kept[0]

    return call


class Block(nn.Module):
    """A small residual MLP, with short kernels, so that the overhead around them is visible."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


BLOCKS = 48


def guard_overhead(contender: str, model: str = "bert", budget_s: float = 0.5) -> dict[str, float]:
    """Returns the seconds per call of a model, of 48 small blocks and of `x + 1` when the graph itself costs nothing.

    The differences to `x + 1` are the costs of the guards of the model and of the blocks; `eager_blocks_s` is what a
    forward of the blocks takes in eager.
    """
    settings = Settings(train=False)
    workload = find_workload(model)
    module, batch = build_model(workload, settings), build_batch(workload, settings)
    stack, rows = nn.Sequential(*(Block() for _ in range(BLOCKS))).eval(), torch.ones(2, 8)
    big, blocks, small = (compile_with(contender, target) for target in (module, stack, add_one))
    x = torch.ones(8)
    with torch.no_grad():
        timings = {
            "empty_model": seconds_per_call(lambda: big(*batch.args, **batch.kwargs), budget_s),
            "empty_blocks": seconds_per_call(lambda: blocks(rows), budget_s),
            "empty_call": seconds_per_call(lambda: small(x), budget_s),
            "eager_blocks": seconds_per_call(lambda: stack(rows), budget_s),
        }
    found = {f"{name}_s": timing.best_s for name, timing in timings.items()}
    found |= {f"{name}_median_s": timing.median_s for name, timing in timings.items()}
    found["guards_s"] = found["empty_model_s"] - found["empty_call_s"]
    found["block_guards_s"] = found["empty_blocks_s"] - found["empty_call_s"]
    return found


def compile_with(contender: str, target: Any) -> Callable[..., Any]:
    """Compile `target` with the contender's capture and `replay` as its backend.

    Raises:
        ValueError: the contender has no capture to measure.
    """
    if contender == "torch.compile":
        return torch.compile(target, backend=replay)
    if contender == "smelt":
        return load_compiler().compile(target, backend=replay)
    raise ValueError(f"{contender} captures nothing")
