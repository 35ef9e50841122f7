"""A program while it runs in torch: its values, what trains, and the table of what each kernel means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from smelt.tiny.graph import Int8Graph, Parameter
from smelt.tiny.program import Call, Program

Rule = Callable[["Run", Call], None]
RULES: dict[str, Rule] = {}
"""What each kernel computes."""


@dataclass
class Run:
    """A program while it runs.

    Attributes:
        values: tensors by the names of the program's values, with the batch as first extent; masks are bool.
        state: what trains, by the names of the program's trained parameters; updates replace its entries.
        label, rate, steps: of a training step.
        loss: of the label, when it is known.
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
        """A parameter in whole, as it is now."""
        trained = self.program.trained.get(parameter.name)
        if trained is None:
            return torch.from_numpy(np.array(parameter.data))
        now = self.state[parameter.name]
        if trained.channels is None:
            return now
        whole = torch.from_numpy(np.array(parameter.data))
        whole[..., list(trained.channels)] = now
        return whole


def rule(name: str) -> Callable[[Rule], Rule]:
    """Enter the meaning of a kernel in the table."""

    def enter(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return enter


def execute(run: Run) -> None:
    """All calls of the program, in order."""
    for call in run.program.calls:
        RULES[call.kernel](run, call)


def terms_in_order(terms: Iterable[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """start + terms[0] + terms[1] + ..., rounded after each addition."""
    total = start
    for term in terms:
        total = total + term
    return total
