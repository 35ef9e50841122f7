"""What each process of the tests of faults runs: processes that differ, come late, fail to compile, or are killed."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smelt
from smelt import pipeline
from smelt.base.errors import CompileError
from smelt.runtime.library import collectives

Told = dict[str, Any]
RANK = int(os.environ["RANK"])


def step(x: Any, group: Any = None) -> Any:
    """Two collectives, the second of what follows from the first."""
    total = (x * 2).sum()
    dist.all_reduce(total, group=group)
    y = torch.relu(x) + total
    dist.all_reduce(count := y.sum(), group=group)
    return y / count


def speaking(x: Any) -> Any:
    """A graph break on one process only."""
    y = x * 2
    if dist.get_rank() == 1:
        open("/dev/null").close()
    dist.all_reduce(y)
    return y + 1


def differing(x: Any, group: Any) -> Any:
    y = x * 2
    if dist.get_rank() == 0:
        dist.all_reduce(y, group=group)
    else:
        dist.broadcast(y, 0, group=group)
    return y


def refused(x: Any) -> Any:
    """Gloo reduces no numbers of 16 bits."""
    y = x.to(torch.int16)
    dist.all_reduce(y)
    return y


def near(call: Callable[..., Any], fn: Callable[..., Any], *args: Any) -> bool:
    got, want = call(*args), fn(*args)
    return bool(torch.allclose(got, want, rtol=1e-5, atol=1e-6))


def shapes() -> list[bool]:
    """Process 1 gets another number of rows each time, at the end none."""
    compiled = smelt.compile(step)
    rows = [(8, 8), (8, 9), (8, 5), (8, 0)]
    return [near(compiled, step, torch.arange(4.0 * each[RANK]).reshape(-1, 4) + 1) for each in rows]


def breaks() -> bool:
    return near(smelt.compile(speaking), speaking, torch.ones(4))


def late() -> bool:
    """Later than the others are patient: they find that nobody waits for something else, and go on waiting."""
    compiled = smelt.compile(step)
    compiled(torch.ones(4))
    time.sleep(3 * collectives.PATIENCE_S * RANK)
    return near(compiled, step, torch.ones(4))


def fails_to_compile() -> bool:
    """The compiler of process 1 fails: eager runs there."""
    whole, os.environ["SMELT_STRICT"] = pipeline.render_cpp, "0"

    def fails(*args: Any) -> Any:
        raise CompileError("injected")

    try:
        if RANK == 1:
            pipeline.render_cpp = fails
        right = near(smelt.compile(step), step, torch.ones(4, 3))
        gradients = [_gradients(compiled) for compiled in (smelt.compile, lambda net: net)]
        return right and all(torch.allclose(*pair, rtol=1e-5, atol=1e-6) for pair in zip(*gradients, strict=True))
    finally:
        pipeline.render_cpp, os.environ["SMELT_STRICT"] = whole, "1"


def _gradients(compiled: Callable[[nn.Module], nn.Module]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    DistributedDataParallel(compiled(net))(torch.arange(6.0).reshape(2, 3) + RANK).sum().backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def error_of(call: Callable[[], Any]) -> list[Any]:
    """The error of a call: its type, text and notes, and the seconds until it came."""
    begin = time.perf_counter()
    try:
        call()
    except RuntimeError as error:
        return [type(error).__name__, str(error), getattr(error, "__notes__", []), time.perf_counter() - begin]
    return ["", "", [], time.perf_counter() - begin]


def differs() -> list[Any]:
    group = dist.new_group(timeout=datetime.timedelta(seconds=100))
    return error_of(lambda: smelt.compile(differing)(torch.ones(4), group))


def stops_early() -> list[Any]:
    """Process 1 has no more data; the group's time limit is short."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1.5))
    compiled = smelt.compile(step)
    compiled(torch.ones(4), group)
    return error_of(lambda: compiled(torch.ones(4), group)) if RANK == 0 else []


def refuses() -> list[Any]:
    return [error_of(lambda: refused(torch.ones(3))), error_of(lambda: smelt.compile(refused)(torch.ones(3)))]


def killed() -> list[Any]:
    """Process 1 ends in the middle of a step."""
    compiled = smelt.compile(step)
    compiled(torch.ones(4))
    if RANK == 1:
        os._exit(0)
    return error_of(lambda: compiled(torch.ones(4)))


CASES: dict[str, Callable[[], Any]] = {
    "shapes": shapes,
    "breaks": breaks,
    "late": late,
    "fails to compile": fails_to_compile,
    "refuses": refuses,
    "differs": differs,
    "stops early": stops_early,
}


def main() -> None:
    """Run all cases; rank 0 prints what both have found."""
    torch.set_num_threads(1)
    collectives.PATIENCE_S, collectives.POLL_S = 0.5, 0.2
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    told: Told = {}
    for name, case in CASES.items():
        smelt.reset()
        told[name] = case()
        stats = smelt.stats()
        told[f"stats {name}"] = [stats["graphs"], stats["breaks"], stats["fallbacks"]]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, told)
    every[0]["killed"] = killed()
    print("told", json.dumps(every), flush=True)
    os._exit(0)  # the other process is gone: there is nothing to end in order


if __name__ == "__main__":
    sys.exit(main())
