"""Trains one task twice, eager and compiled, alternately: same weights, same batches, same machine load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from smelt.demo.tasks import Task

CHUNK_S = 1.0
"""Approximate number of seconds that one side trains before the other continues: short enough that other load on the
machine affects both sides equally.
"""

Compile = Callable[[nn.Module], Any]


@dataclass
class Runner:
    """One side of the race. `seconds` and `losses` have one entry per step; `first_s` is the time of compiling and of
    the
    first step."""

    name: str
    task: Task
    model: nn.Module
    call: Any
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first_s: float = 0.0
    score: float | None = None

    def __post_init__(self) -> None:
        self._optimizer = self.task.optimizer(self.model)
        self._batches: Iterator[Any] = self.task.batches()

    def step(self) -> None:
        """One training step; its loss and time are recorded."""
        batch = next(self._batches)
        begin = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.task.loss(self.call, batch)
        loss.backward()
        self._optimizer.step()
        self.losses.append(float(loss.detach()))
        self.seconds.append(time.perf_counter() - begin)

    def evaluate(self) -> None:
        """The task's score on held-out data, computed by this side's callable."""
        self.model.eval()
        with torch.no_grad():
            self.score = self.task.score(self.call)
        self.model.train()

    @property
    def median_s(self) -> float:
        """Median seconds of a step, without the first one."""
        later = self.seconds[1:] or self.seconds
        return statistics.median(later) if later else float("nan")


def start_runner(name: str, task: Task, compile: Compile | None, seed: int = 0) -> Runner:
    """A side with seeded weights after its first step, whose time includes `compile`."""
    torch.manual_seed(seed)
    model = task.build().train()
    begin = time.perf_counter()
    runner = Runner(name, task, model, model if compile is None else compile(model))
    runner.step()
    runner.first_s = time.perf_counter() - begin
    return runner


def race(task: Task, compile: Compile, seconds: float, notify: Callable[[list[Runner]], None]) -> list[Runner]:
    """Train eager and compiled for `seconds` in all, in alternating chunks; both make the same number of steps."""
    end = time.perf_counter() + seconds
    runners = [start_runner("eager", task, None)]
    notify(runners)
    runners.append(start_runner("smelt", task, compile))
    notify(runners)
    while time.perf_counter() < end:
        steps = max(1, int(CHUNK_S / max(runner.median_s for runner in runners)))
        for runner in runners:
            for _ in range(steps):
                runner.step()
            notify(runners)
        # The order changes, so that neither side always follows the other's warm caches.
        runners.reverse()
    runners.sort(key=lambda runner: runner.name)
    for runner in runners:
        runner.evaluate()
    notify(runners)
    return runners
