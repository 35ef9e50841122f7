"""What a compiled call costs beyond its kernels: `x + 1`, and the guards of BERT-base."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from smelt.bench.contenders import find_contender, load_compiler
from smelt.bench.steps import build_batch, build_model
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


def add_one(x: Tensor) -> Tensor:
    """The smallest program that still runs a kernel."""
    return x + 1


def seconds_per_call(call: Callable[[], Any], budget_s: float = 0.5, repeats: int = 7) -> float:
    """Seconds one call takes: the best of several loops, each long enough for the clock."""
    for _ in range(20):
        call()
    begin = time.perf_counter()
    call()
    number = max(1, int(budget_s / repeats / max(time.perf_counter() - begin, 1e-7)))
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - begin) / number)
    return best


def call_overhead(contender: str, budget_s: float = 0.5) -> float:
    """Seconds per call of `x + 1` on eight numbers, compiled by the contender."""
    if contender == "eager":
        compiled: Callable[[Tensor], Tensor] = add_one
    else:
        compiled = find_contender(contender)(add_one, Settings(train=False))  # type: ignore[arg-type]
    x = torch.ones(8)
    return seconds_per_call(lambda: compiled(x), budget_s)


def replay(gm: fx.GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A backend whose graph runs once and then returns the same result: what remains of a call is the compiler's."""
    kept: list[Any] = []

    def call(*inputs: Tensor) -> Any:
        if not kept:
            kept.append(gm(*inputs))
        return kept[0]

    return call


def guard_overhead(contender: str, model: str = "bert", budget_s: float = 0.5) -> dict[str, float]:
    """Seconds per call of a model and of `x + 1` when the graph itself costs nothing; the difference is its guards."""
    settings = Settings(train=False)
    workload = find_workload(model)
    module, batch = build_model(workload, settings), build_batch(workload, settings)
    big, small = compile_with(contender, module), compile_with(contender, add_one)
    x = torch.ones(8)
    with torch.no_grad():
        empty_model = seconds_per_call(lambda: big(*batch.args, **batch.kwargs), budget_s)
        empty_call = seconds_per_call(lambda: small(x), budget_s)
    return {"empty_model_s": empty_model, "empty_call_s": empty_call, "guards_s": empty_model - empty_call}


def compile_with(contender: str, target: Any) -> Callable[..., Any]:
    """`target` under the contender's capture with `replay` as its backend.

    Raises:
        ValueError: the contender has no capture to measure.
    """
    if contender == "torch.compile":
        return torch.compile(target, backend=replay)
    if contender == "smelt":
        return load_compiler().compile(target, backend=replay)
    raise ValueError(f"{contender} captures nothing")
