"""`smelt bench aot`: measures a model's first step from an artefact and in eager, alternately, in fresh processes."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

from smelt.bench.contenders import load_compiler
from smelt.bench.machine import describe_machine
from smelt.bench.processes.process import Failure, Limits, Server, cache_environment
from smelt.bench.steps import build_batch, build_model, precision
from smelt.bench.workload import Settings, Workload
from smelt.bench.workloads import find_workload

FILE = "SMELT_BENCH_ARTEFACT"
"""Environment variable with the path of the artefact, for the measured processes."""

LOADED = "smelt.bench.ahead.measure:loaded"
"""Name of the contender that loads the artefact."""

GOAL = 1.5
"""Maximum ratio of the first step from an artefact to eager's first step."""


def loaded(model: nn.Module, settings: Settings) -> Any:
    """The contender that imports smelt, reads the artefact and applies it to `model`; its start includes all three."""
    return load_compiler().load(os.environ[FILE]).apply(model)


def save(model: str, settings: Settings) -> dict[str, Any]:
    """Make and save the artefact of a workload's step without running the model; returns its seconds and bytes."""
    workload = find_workload(model, settings.size)
    built, batch = build_model(workload, settings), build_batch(workload, settings)
    compiler = load_compiler()
    begin = time.perf_counter()
    with precision(settings), torch.set_grad_enabled(settings.train):
        artefact = compiler.compile(built).aot_compile(*batch.args, **batch.kwargs)
    path = Path(os.environ[FILE])
    artefact.save(path)
    return {"seconds": time.perf_counter() - begin, "bytes": path.stat().st_size}


def run_ahead(
    workloads: Sequence[Workload],
    settings: Settings,
    rounds: int,
    command: str,
    console: Console,
    json_file: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure each model, print a table, and write the seconds to `json_file`."""
    found: dict[str, dict[str, Any]] = {}
    columns = ["eager s", "artefact s", "times eager", "made in s", "MiB"]
    title = f"first step in a fresh process, median of {rounds}, with the import of smelt (goal: {GOAL} times eager)"
    table = Table("model", *columns, box=box.SIMPLE_HEAD, title=title)
    failed = []
    for workload in workloads:
        value = _measure(workload, settings, rounds)
        if isinstance(value, Failure):
            failed.append(f"{workload.name}: {value.status}: {value.error}")
            continue
        found[workload.name] = value
        eager, ours = (statistics.median(value[name]) for name in ("eager_s", "artefact_s"))
        cells = f"{eager:.2f}", f"{ours:.2f}", f"{ours / eager:.2f}", f"{value['seconds']:.1f}"
        table.add_row(workload.name, *cells, f"{value['bytes'] / 2**20:.1f}")
    console.print(table)
    for line in failed:
        console.print(line, style="red", markup=False, highlight=False)
    if json_file is not None:
        run = {"command": command, "machine": describe_machine(), "settings": asdict(settings), "ahead": found}
        json_file.write_text(json.dumps(run, indent=1) + "\n")
    return found


def _measure(workload: Workload, settings: Settings, rounds: int) -> dict[str, Any] | Failure:
    """Measure all starts; returns seconds by contender, or a Failure. Each start from the artefact has an empty
    cache.
    """
    with tempfile.TemporaryDirectory(prefix="smelt-bench-ahead-") as name, Server(workload.needs) as server:
        given = {FILE: str(Path(name) / "model.smelt")}

        def task(what: dict[str, Any], folder: str) -> dict[str, Any] | Failure:
            environment = cache_environment(Path(name) / folder, [folder]) | given
            return server.run({"model": workload.name, "settings": asdict(settings), **what}, environment, Limits())

        made = task({"task": "ahead"}, "made")
        if isinstance(made, Failure):
            return made
        seconds: dict[str, list[float]] = {"eager": [], LOADED: []}
        for number in range(rounds + 1):  # the first round is dropped: it only brings files into memory
            for contender in seconds:
                value = task({"task": "start", "contender": contender, "steps": 0}, f"empty{number}")
                if isinstance(value, Failure):
                    return value
                seconds[contender] += [value["first_s"]] * (number > 0)
    return made | {"eager_s": seconds["eager"], "artefact_s": seconds[LOADED]}
