"""The painter of Learning To Paint With Model-based Deep Reinforcement Learning (Huang, Heng, Zhou, 2019).

Only the actor of the deterministic policy gradient runs: a ResNet-18 that takes the canvas, the target picture, the
step number and two coordinate planes, and returns the parameters of five strokes. Unlike the ImageNet ResNet, it begins
with a strided 3 x 3 convolution, halves the map in every stage and ends with a sigmoid. The residual sum of a block is
computed in place.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

CPU = {"planes": 9, "actions": 65}
FULL = {"planes": 9, "actions": 65}


class Residual(nn.Module):
    """Two 3 x 3 convolutions and a residual connection, with a projection if the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        hidden += self.shortcut(x)
        return F.relu(hidden)


class Actor(nn.Module):
    """Maps state planes (batch, planes, 128, 128) to stroke parameters (batch, actions) between 0 and 1."""

    def __init__(self, planes: int, actions: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(planes, 64, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        widths = [64, 64, 128, 256, 512]
        self.stages = nn.Sequential()
        for before, after in zip(widths, widths[1:], strict=False):
            self.stages.append(nn.Sequential(Residual(before, after, stride=2), Residual(after, after, stride=1)))
        self.act = nn.Linear(512, actions)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        hidden = self.stages(F.relu(self.norm(self.enter(state))))
        pooled = F.avg_pool2d(hidden, 4)
        return torch.sigmoid(self.act(pooled.flatten(1)))


def build(planes: int, actions: int) -> nn.Module:
    return Actor(planes, actions)
