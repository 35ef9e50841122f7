"""The actor of soft actor-critic (Haarnoja, Zhou, Abbeel, Levine: "Soft Actor-Critic: Off-Policy Maximum Entropy Deep
Reinforcement Learning with a Stochastic Actor", 2018): a state in, a distribution over actions out.

As in the implementation of the public benchmark, the output is a distribution object, a normal distribution squashed by
tanh. Forward makes it with torch's argument checks, which read a tensor's value (`(scale > 0).all()`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from smelt.bench.suites.models.squashed_normal import SquashedNormal

CPU = {"observations": 3, "actions": 1, "hidden": 64}
FULL = {"observations": 3, "actions": 1, "hidden": 1024}

LOG_STD = (-10.0, 2.0)  # minimum and maximum


class Actor(nn.Module):
    """Maps states (batch, observations) to a distribution over actions (batch, actions)."""

    def __init__(self, observations: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(observations, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, 2 * actions)
        for layer in (self.first, self.second, self.output):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor) -> SquashedNormal:
        x = functional.relu(self.second(functional.relu(self.first(states))))
        loc, log_std = self.output(x).chunk(2, dim=1)
        smallest, largest = LOG_STD
        log_std = smallest + 0.5 * (largest - smallest) * (torch.tanh(log_std) + 1)
        return SquashedNormal(loc, log_std.exp())


def build(observations: int, actions: int, hidden: int) -> nn.Module:
    """Build an actor of the given widths, with random weights."""
    return Actor(observations, actions, hidden)
