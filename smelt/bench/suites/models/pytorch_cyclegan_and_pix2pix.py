"""CycleGAN's generator (Zhu, Park, Isola, Efros: Unpaired Image-to-Image Translation, 2017) after Johnson et al., 2016.

It has reflected borders, and instance norms without parameters or statistics: each normalization is a reduction over
the pixels of one image and one channel. The gradients of the biases before the norms are zero except for rounding
errors.
"""

from __future__ import annotations

import torch
from torch import nn

CPU = {"width": 16, "blocks": 3}
FULL = {"width": 64, "blocks": 9}


class Residual(nn.Module):
    """Two reflected 3 x 3 convolutions added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Generator(nn.Module):
    """Maps an image (batch, 3, h, w), with h and w multiples of 4, to an image of the same shape with values between -1
    and 1.
    """

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.ReflectionPad2d(3),
            *normalized(nn.Conv2d(3, width, 7), width),
            *normalized(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), 2 * width),
            *normalized(nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1), 4 * width),
            *[Residual(4 * width) for _ in range(blocks)],
            *normalized(enlarge(4 * width, 2 * width), 2 * width),
            *normalized(enlarge(2 * width, width), width),
            nn.ReflectionPad2d(3),
            nn.Conv2d(width, 3, 7),
            nn.Tanh(),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model(image)


def normalized(convolution: nn.Module, width: int) -> list[nn.Module]:
    return [convolution, nn.InstanceNorm2d(width), nn.ReLU(inplace=True)]


def enlarge(before: int, after: int) -> nn.Module:
    return nn.ConvTranspose2d(before, after, 3, stride=2, padding=1, output_padding=1)


def build(width: int, blocks: int) -> nn.Module:
    return Generator(width, blocks)
