"""The actor of soft actor-critic (Haarnoja, Zhou, Abbeel, Levine: "Soft Actor-Critic: Off-Policy Maximum Entropy Deep
Reinforcement Learning with a Stochastic Actor", 2018): a state in, a distribution over actions out.

Kept from the implementation that benchmarks it: THE OUTPUT IS A DISTRIBUTION OBJECT, a normal one squashed by tanh,
built in forward with torch's argument checks on, which read a tensor's value (`(scale > 0).all()`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from smelt.bench.suites.models.squashed_normal import SquashedNormal

CPU = {"observations": 3, "actions": 1, "hidden": 64}
FULL = {"observations": 3, "actions": 1, "hidden": 1024}

LOG_STD = (-10.0, 2.0)  # smallest, largest


class Actor(nn.Module):
    """States (batch, observations) to a distribution over actions (batch, actions)."""

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
    """An actor of the given widths, random weights."""
    return Actor(observations, actions, hidden)
