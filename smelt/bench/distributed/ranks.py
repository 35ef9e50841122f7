"""The program of each rank: `torchrun ... -m smelt.bench.distributed.ranks TASK.json RESULT.json`.

TASK.json contains the fields of `Task`. Rank 0 writes the figures of `measured` into RESULT.json. A rank that fails
writes RESULT.json.RANK with the error and ends with exit code 1; torchrun then ends the others.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smelt.bench.contenders import compiler_counts, find_contender
from smelt.bench.distributed.communication import timeline
from smelt.bench.distributed.models import find_model
from smelt.bench.distributed.wrappers import find_wrapper
from smelt.bench.meter import meter_of
from smelt.bench.steps import build_model, precision, use_tf32
from smelt.bench.workload import Settings

COMPARED_STEPS = 5
"""Number of steps whose losses are compared with eager's, and after which the parameters are compared; the first of
these steps is the cold start.
"""

WARMUP_STEPS = 5
TRACED_STEPS = 2


@dataclass(frozen=True)
class Task:
    """One measurement: a model under one wrapper, compiled by one contender.

    Attributes:
        reference: path prefix of the files of reference parameters, one per rank (this prefix, a dot and the rank). The
            first measurement of a row writes them; later ones compare their parameters with them.
        device: `cpu` or `cuda`; on `cuda` each rank takes the GPU of its local rank.
        optimizer: name of the optimizer: `sgd` or `adamw` (fused on a GPU).
        rounds, steps: number of timed rounds, and of steps in each round.
    """

    model: str
    wrapper: str
    contender: str
    reference: str
    device: str = "cpu"
    precision: str = "fp32"
    optimizer: str = "adamw"
    rounds: int = 5
    steps: int = 10


def main(task_file: str, result_file: str) -> int:
    """Measure the task; returns the exit code, which is 1 if the measurement failed."""
    task = Task(**json.loads(Path(task_file).read_text()))
    rank, device = int(os.environ["RANK"]), rank_device(task.device)
    try:
        if device.startswith("cuda"):
            dist.init_process_group("nccl", device_id=torch.device(device))
        else:
            dist.init_process_group("gloo")
        found = measured(task, device)
        dist.destroy_process_group()
    except Exception as error:
        traceback.print_exc()
        Path(f"{result_file}.{rank}").write_text(f"rank {rank}: {type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)  # a regular exit would wait for collectives that other ranks have not begun
    if rank == 0:
        Path(result_file).write_text(json.dumps(found))
    return 0


def rank_device(device: str) -> str:
    """Returns this rank's device, which also becomes the current device."""
    if not device.startswith("cuda"):
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def measured(task: Task, device: str) -> dict[str, Any]:
    """Measure losses, cold start, step time, peak memory, and the share of communication that computation hides.

    Returns:
        `cold_s` (seconds of the first step), `step_s` (median over rounds, of the slowest rank), `peak_mb` (MiB),
        `losses`, `parameter_error` (see `parameter_error`), `hidden` (share of communication that computation hides)
        and `timeline` (both None on a CPU), `counts` (of the compiler).
    """
    settings = Settings(device=device, precision=task.precision, optimizer=task.optimizer)
    use_tf32(settings)
    meter = meter_of(device)
    step, model = training_step(task, settings)
    meter.wait_for_device()
    dist.barrier()
    begin = time.perf_counter()
    losses = [float(step())]
    meter.wait_for_device()
    cold = time.perf_counter() - begin
    losses += [float(step()) for _ in range(COMPARED_STEPS - 1)]
    error = parameter_error(model, Path(f"{task.reference}.{dist.get_rank()}"))
    for _ in range(WARMUP_STEPS):
        step()
    meter.reset_peak()
    seconds = []
    for _ in range(task.rounds):
        dist.barrier()
        seconds.append(meter.seconds(step, times=task.steps))
    peak = meter.peak_mb()
    lane = traced(step, device)
    step_s = statistics.median(slowest(seconds, device))
    return {
        "cold_s": slowest([cold], device)[0],
        "step_s": step_s,
        "peak_mb": slowest([peak], device)[0],
        "losses": losses,
        "parameter_error": slowest([error], device)[0],
        "counts": {k: v for k, v in compiler_counts(task.contender).items() if isinstance(v, int)},
        "hidden": None if lane is None else lane.hidden_share(),
        "timeline": None if lane is None else asdict(lane),
    }


def training_step(task: Task, settings: Settings) -> tuple[Callable[[], Tensor], nn.Module]:
    """Returns a function that makes one step (forward, loss, backward, optimizer) of the wrapped model, and
    that model.
    """
    workload, wrapper = find_model(task.model, settings.device), find_wrapper(task.wrapper)
    model = build_model(workload, settings)
    call = wrapper.wrap(model, find_contender(task.contender), settings, dist.get_world_size())
    torch.manual_seed(settings.seed + 1 + (0 if wrapper.same_batch else dist.get_rank()))
    batch = workload.batch().to(torch.device(settings.device))
    optimizer = optimizer_of(task.optimizer, model, settings.device)

    def step() -> Tensor:
        with precision(settings):
            loss = workload.loss(call(*batch.args, **batch.kwargs), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step, model


def optimizer_of(name: str, model: nn.Module, device: str) -> torch.optim.Optimizer:
    """Make the optimizer over the model's (possibly sharded) parameters."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.startswith("cuda"))


def parameter_error(model: nn.Module, reference: Path) -> float:
    """Returns the largest difference of this rank's parameters from those in the file, relative to the largest element
    of each parameter.

    If the file does not exist, the parameters are written to it, and the result is 0.
    """
    own = [local(parameter).detach().cpu() for parameter in model.parameters()]
    if not reference.exists():
        torch.save([tensor.clone() for tensor in own], reference)
        return 0.0
    errors = [0.0]
    for tensor, expected in zip(own, torch.load(reference), strict=True):
        if expected.numel():
            largest = expected.abs().max().clamp(min=1e-6)
            errors.append(float((tensor - expected).abs().max() / largest))
    return max(errors)


def local(parameter: Tensor) -> Tensor:
    """Returns this rank's shard of a sharded parameter, or the parameter itself."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def traced(step: Callable[[], Tensor], device: str) -> Any:
    """Returns the timeline of the last of a few traced steps on a GPU; None on a CPU."""
    if not device.startswith("cuda"):
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for _ in range(TRACED_STEPS):
        dist.barrier()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            step()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        return timeline(json.loads(file.read_text())["traceEvents"])


def slowest(values: list[float], device: str) -> list[float]:
    """Returns for each position of `values` the largest value of all ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
