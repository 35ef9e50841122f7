"""The target of rendering one part of a graph: a device, and the schedule's assumptions on memory and time."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smelt.schedule.machine import CPU, GPU


@dataclass(frozen=True)
class Target:
    """The inputs of `to_program` besides the graph of a part.

    Attributes:
        device: the device on which Triton kernels run; None: C++ kernels on the CPU.
        updates, caller_owned, split_products, stage_bytes: see `smelt.schedule.plan.schedule`.
    """

    device: torch.device | None
    updates: Mapping[int, str] | None
    caller_owned: Container[int]
    split_products: bool
    stage_bytes: int = 0

    def for_schedule(self) -> tuple[Any, ...]:
        """Returns the arguments of `schedule` that follow from this target."""
        machine = CPU if self.device is None else GPU
        return self.updates, machine, self.caller_owned, self.split_products, self.stage_bytes
