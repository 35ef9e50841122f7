"""A small perceptron that learns a Lennard-Jones potential (Jones: On the Determination of Molecular Fields, 1924).

It has 865 parameters and takes 1000 distances: the work per operator is tiny, so that the time is that of launching
operators and entering compiled code.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

CPU = {"width": 16, "depth": 4}
FULL = {"width": 16, "depth": 4}


class Potential(nn.Module):
    """Maps distances (batch, 1) to energies (batch, 1), by `depth` tanh layers of `width` units."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [1] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(sizes))
        self.energy = nn.Linear(width, 1)

    def forward(self, distance: torch.Tensor) -> torch.Tensor:
        hidden = distance
        for layer in self.hidden:
            hidden = torch.tanh(layer(hidden))
        return self.energy(hidden)


def build(width: int, depth: int) -> nn.Module:
    return Potential(width, depth)
