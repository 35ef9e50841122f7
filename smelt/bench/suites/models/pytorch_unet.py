"""U-Net (Ronneberger, Fischer, Brox: Convolutional Networks for Biomedical Image Segmentation, 2015), bilinear.

The pictures are 959 pixels wide. After four halvings, the enlarged map is narrower than the map with which it is
concatenated, and is padded by amounts that forward computes from the two shapes. Maps are enlarged by bilinear
interpolation with aligned corners, whose gradient is not deterministic on CUDA.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

CPU = {"planes": 3, "classes": 2, "width": 64}
FULL = {"planes": 3, "classes": 2, "width": 64}


class Up(nn.Module):
    """Enlarges the deep map (batch, deep, h, w), pads it to the size of the skipped map, and convolves both
    together.
    """

    def __init__(self, before: int, middle: int, after: int) -> None:
        super().__init__()
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.mix = double_convolution(before, middle, after)

    def forward(self, deep: torch.Tensor, skipped: torch.Tensor) -> torch.Tensor:
        deep = self.enlarge(deep)
        rows = skipped.shape[2] - deep.shape[2]
        columns = skipped.shape[3] - deep.shape[3]
        deep = F.pad(deep, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.mix(torch.cat([skipped, deep], dim=1))


class UNet(nn.Module):
    """Maps images (batch, planes, h, w) of at least 16 pixels in each direction to class scores (batch,
    classes, h, w).
    """

    def __init__(self, planes: int, classes: int, width: int) -> None:
        super().__init__()
        # The deepest map has half the usual width, as bilinear enlarging, unlike a convolution, cannot halve it.
        widths = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.enter = double_convolution(planes, width, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), double_convolution(before, after, after))
            for before, after in zip(widths, widths[1:], strict=False)
        )
        outs = [4 * width, 2 * width, width, width]
        self.up = nn.ModuleList(
            Up(2 * skipped, skipped, after) for skipped, after in zip(reversed(widths[:-1]), outs, strict=True)
        )
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = [self.enter(image)]
        for down in self.down:
            maps.append(down(maps[-1]))
        hidden = maps.pop()
        for up in self.up:
            hidden = up(hidden, maps.pop())
        return self.classify(hidden)


def double_convolution(before: int, middle: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, middle, 3, padding=1),
        nn.BatchNorm2d(middle),
        nn.ReLU(inplace=True),
        nn.Conv2d(middle, after, 3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def build(planes: int, classes: int, width: int) -> nn.Module:
    return UNet(planes, classes, width)
