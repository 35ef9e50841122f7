"""The actor of DrQ (Kostrikov, Yarats, Fergus: "Image Augmentation Is All You Need: Regularizing Deep Reinforcement
Learning from Pixels", 2020): stacked frames in, a distribution over actions out.

As in the implementation of the public benchmark, the output is a distribution object, a normal distribution squashed by
tanh. It is made with torch's argument checks, which read a tensor's value. Every forward writes its intermediate
tensors into dictionaries of the modules (`outputs`), a side effect on Python state with tensors of the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smelt.bench.suites.models.squashed_normal import SquashedNormal

CPU = {"channels": 27, "actions": 1, "hidden": 64}
FULL = {"channels": 27, "actions": 1, "hidden": 1024}

LOG_STD = (-10.0, 2.0)  # minimum and maximum


class Encoder(nn.Module):
    """Maps frames (batch, channels, 84, 84) with values in [0, 255] to features (batch, features) in (-1, 1)."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        sizes = [(channels, 2), (32, 1), (32, 1), (32, 1)]
        self.convolutions = nn.ModuleList(nn.Conv2d(inputs, 32, 3, stride=stride) for inputs, stride in sizes)
        self.head = nn.Sequential(nn.Linear(32 * 35 * 35, features), nn.LayerNorm(features))
        self.outputs: dict[str, Tensor] = {}

    def forward(self, frames: Tensor) -> Tensor:
        x = frames / 255.0
        self.outputs["frames"] = x
        for i, convolution in enumerate(self.convolutions):
            x = torch.relu(convolution(x))
            self.outputs[f"convolution{i}"] = x
        x = torch.tanh(self.head(x.reshape(x.size(0), -1)))
        self.outputs["features"] = x
        return x


class Actor(nn.Module):
    """Maps frames (batch, channels, 84, 84) to a distribution over actions (batch, actions)."""

    def __init__(self, channels: int, actions: int, hidden: int, features: int) -> None:
        super().__init__()
        self.encoder = Encoder(channels, features)
        first, second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.trunk = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, 2 * actions))
        self.outputs: dict[str, Tensor] = {}
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                gain = nn.init.calculate_gain("relu") if isinstance(module, nn.Conv2d) else 1.0
                nn.init.orthogonal_(module.weight, gain)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, frames: Tensor) -> SquashedNormal:
        loc, log_std = self.trunk(self.encoder(frames)).chunk(2, dim=-1)
        smallest, largest = LOG_STD
        log_std = smallest + 0.5 * (largest - smallest) * (torch.tanh(log_std) + 1)
        std = log_std.exp()
        self.outputs["loc"] = loc
        self.outputs["std"] = std
        return SquashedNormal(loc, std)


def build(channels: int, actions: int, hidden: int, features: int = 50) -> nn.Module:
    """Build an actor of the given widths, with random weights."""
    return Actor(channels, actions, hidden, features)
