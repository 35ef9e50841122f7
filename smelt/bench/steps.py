"""One training or inference step of one contender, as a callable; every contender gets the same start."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.contenders import Prepare
from smelt.bench.workload import Batch, Settings, Workload


def build_model(workload: Workload, settings: Settings) -> nn.Module:
    """The workload's model with seeded weights, on its device, in train or eval mode."""
    torch.manual_seed(settings.seed)
    return workload.build().to(settings.device).train(settings.train)


def build_batch(workload: Workload, settings: Settings) -> Batch:
    """The workload's seeded batch on its device."""
    torch.manual_seed(settings.seed + 1)
    return workload.batch().to(torch.device(settings.device))


def precision(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    """The autocast region of a forward pass, or nothing."""
    if settings.precision == "amp":
        return torch.autocast(torch.device(settings.device).type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


class Stepper:
    """One contender's model (its own), optimizer and compiled callable. Calling it does one step.

    A training step is zero_grad, forward, loss, backward and SGD; an inference step is forward without
    gradients. It ends when the device has finished.
    """

    def __init__(self, workload: Workload, model: nn.Module, batch: Batch, settings: Settings) -> None:
        self.workload, self.batch, self.settings = workload, batch, settings
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.learning_rate)
        self.call: Any = None

    def compile(self, prepare: Prepare) -> Stepper:
        """Hand the model to the contender. Compilation itself usually waits for the first step."""
        self.call = prepare(self.model, self.settings)
        return self

    def __call__(self) -> float:
        value = self._train() if self.settings.train else self._infer()
        if self.settings.device.startswith("cuda"):
            torch.cuda.synchronize()
        return value

    def _train(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def _infer(self) -> float:
        with torch.no_grad():
            return float(self.forward())

    def forward(self) -> Tensor:
        """The loss of the batch under the contender's callable."""
        with precision(self.settings):
            return self.workload.loss(self.call(*self.batch.args, **self.batch.kwargs), self.batch)
