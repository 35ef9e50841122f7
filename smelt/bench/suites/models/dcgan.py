"""DCGAN's discriminator (Radford, Metz, Chintala: Unsupervised Representation Learning with DCGANs, 2015).

The activations work in place, directly after a convolution or a batch norm: a compiler has to recognise that the tensor
that it may save for the backward is overwritten. The entry runs only the discriminator.
"""

from __future__ import annotations

import torch
from torch import nn

CPU = {"channels": 3, "width": 64}
FULL = {"channels": 3, "width": 64}


class Discriminator(nn.Module):
    """Halves a 64 x 64 image four times, doubling the channels, then classifies the remaining 4 x 4 map.

    The input is (batch, channels, 64, 64), the output (batch, 1, 1, 1): the probability of being a real image.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False)
        self.enter_activation = nn.LeakyReLU(0.2, inplace=True)
        self.stages = nn.Sequential(*[halve(width * factor) for factor in (1, 2, 4)])
        self.judge = nn.Conv2d(width * 8, 1, 4, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.enter_activation(self.enter(image))
        return torch.sigmoid(self.judge(self.stages(hidden)))


def halve(width: int) -> nn.Sequential:
    """Build a strided convolution from `width` to twice as many channels, with batch norm."""
    return nn.Sequential(
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2, inplace=True),
    )


def build(channels: int, width: int) -> nn.Module:
    return Discriminator(channels, width)
