"""The state of a running program in torch (values, trained parameters), and the table of the kernels' computations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from smelt.tiny.graph import Int8Graph, Parameter
from smelt.tiny.program import Call, Program

Rule = Callable[["Run", Call], None]
RULES: dict[str, Rule] = {}
"""Name of a kernel -> the function that computes it."""


@dataclass
class Run:
    """A program while it runs.

    Attributes:
        values: tensors by the names of the program's values, with the batch as first extent; masks are bool.
        state: trained parameters by their names in the program; updates replace the entries.
        label, rate, steps: the label, the learning rate and the count of earlier steps, for a training step.
        loss: the loss, once it is computed.
    """

    program: Program
    values: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    label: int = 0
    rate: float = 0.0
    steps: int = 0
    loss: torch.Tensor | None = None

    @property
    def graph(self) -> Int8Graph:
        """The graph of the program."""
        return self.program.graph

    def parameter(self, parameter: Parameter) -> torch.Tensor:
        """The present value of a parameter; of a sparse layer fixed and trained weights together."""
        trained = self.program.trained.get(parameter.name)
        if trained is None:
            return torch.from_numpy(np.array(parameter.data))
        now = self.state[parameter.name]
        if trained.channels is None:
            return now
        weights = torch.from_numpy(np.array(parameter.data))
        weights[..., list(trained.channels)] = now
        return weights


def rule(name: str) -> Callable[[Rule], Rule]:
    """Decorator: register the function that computes a kernel."""

    def enter(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return enter


def execute(run: Run) -> None:
    """Run all calls of the program, in order."""
    for call in run.program.calls:
        RULES[call.kernel](run, call)


def terms_in_order(terms: Iterable[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """start + terms[0] + terms[1] + ..., rounded after each addition."""
    total = start
    for term in terms:
        total = total + term
    return total
