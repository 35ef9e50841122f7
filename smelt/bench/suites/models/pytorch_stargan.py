"""StarGAN's generator (Choi et al.: Unified Generative Adversarial Networks for Multi-Domain Translation, 2017).

The requested attributes are further channels of the picture, each with one constant value. The instance norms have
parameters and, unusually, running statistics: in training they normalize by the statistics of the image and update two
buffers with their mean over the batch; in evaluation they normalize by the buffers.
"""

from __future__ import annotations

import torch
from torch import nn

CPU = {"width": 8, "attributes": 5, "blocks": 2}
FULL = {"width": 64, "attributes": 5, "blocks": 6}


class Residual(nn.Module):
    """Two 3 x 3 convolutions added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            instance_norm(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            instance_norm(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Generator(nn.Module):
    """Changes images (batch, 3, h, w), with h and w multiples of 4, to have the attributes (batch, attributes) of 0 and
    1.
    """

    def __init__(self, width: int, attributes: int, blocks: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *normalized(nn.Conv2d(3 + attributes, width, 7, padding=3, bias=False), width),
            *normalized(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False), 2 * width),
            *normalized(nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1, bias=False), 4 * width),
            *[Residual(4 * width) for _ in range(blocks)],
            *normalized(nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1, bias=False), 2 * width),
            *normalized(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False), width),
            nn.Conv2d(width, 3, 7, padding=3, bias=False),
            nn.Tanh(),
        )

    def forward(self, image: torch.Tensor, attributes: torch.Tensor) -> torch.Tensor:
        planes = attributes[:, :, None, None].repeat(1, 1, image.shape[2], image.shape[3])
        return self.main(torch.cat([image, planes], dim=1))


def instance_norm(width: int) -> nn.Module:
    return nn.InstanceNorm2d(width, affine=True, track_running_stats=True)


def normalized(convolution: nn.Module, width: int) -> list[nn.Module]:
    return [convolution, instance_norm(width), nn.ReLU(inplace=True)]


def build(width: int, attributes: int, blocks: int) -> nn.Module:
    return Generator(width, attributes, blocks)
