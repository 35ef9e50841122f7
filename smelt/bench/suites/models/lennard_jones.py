"""A small perceptron that learns a Lennard-Jones potential (Jones: On the Determination of Molecular Fields, 1924).

865 parameters on 1000 distances: the work per operator is tiny, so that what is measured is the cost of
launching operators and of entering compiled code.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

CPU = {"width": 16, "depth": 4}
FULL = {"width": 16, "depth": 4}


class Potential(nn.Module):
    """Distances (batch, 1) in, energies (batch, 1) out, through `depth` tanh layers of `width` units."""

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
