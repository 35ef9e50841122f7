"""Super SloMo (Jiang et al.: High Quality Estimation of Multiple Intermediate Frames for Video Interpolation, 2018).

One forward is a whole training step: two U-Nets, four backward warpings by `grid_sample`, and the loss, with a frozen
VGG-16 through which gradients flow. As in the original, the pixel grid of the warping is an integer tensor in a plain
attribute, neither parameter nor buffer, and the time of each sample is looked up by a tensor of frame numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import nn

CPU = {"size": 64, "width": 32}
FULL = {"size": 352, "width": 32}

FRAMES = 7
"""Number of frames between two input frames: the times are 1/8 to 7/8."""

VGG_WIDTHS = (64, 64, None, 128, 128, None, 256, 256, 256, None, 512, 512, 512)
"""Channels of VGG-16's first convolutions; None halves the map."""


class Down(nn.Module):
    """Halves the map (batch, before, h, w) by averaging, then applies two convolutions of `kernel` x `kernel`."""

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv2d(after, after, kernel, padding=kernel // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = leaky(self.conv1(F.avg_pool2d(x, 2)))
        return leaky(self.conv2(x))


class Up(nn.Module):
    """Enlarges the deep map (batch, before, h, w) to the size of the skipped map (batch, after, 2h, 2w); convolves
    both.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(2 * after, after, 3, padding=1)

    def forward(self, deep: torch.Tensor, skipped: torch.Tensor) -> torch.Tensor:
        deep = F.interpolate(deep, scale_factor=2, mode="bilinear")
        deep = leaky(self.conv1(deep))
        return leaky(self.conv2(torch.cat([deep, skipped], dim=1)))


class UNet(nn.Module):
    """Maps (batch, before, h, w) to (batch, after, h, w), with h and w multiples of 32; the output has an activation,
    too.
    """

    def __init__(self, before: int, after: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 7, padding=3)
        self.conv2 = nn.Conv2d(width, width, 7, padding=3)
        widths = [width, 2 * width, 4 * width, 8 * width, 16 * width, 16 * width]
        pairs = list(zip(widths, widths[1:], strict=False))
        kernels = [5, 3, 3, 3, 3]
        self.down = nn.ModuleList(Down(*pair, kernel) for pair, kernel in zip(pairs, kernels, strict=True))
        self.up = nn.ModuleList(Up(deep, skipped) for skipped, deep in reversed(pairs))
        self.conv3 = nn.Conv2d(width, after, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [leaky(self.conv2(leaky(self.conv1(x))))]
        for down in self.down:
            maps.append(down(maps[-1]))
        hidden = maps.pop()
        for up in self.up:
            hidden = up(hidden, maps.pop())
        return leaky(self.conv3(hidden))


class BackwardWarp(nn.Module):
    """Samples an image (batch, planes, h, w) at its pixel positions plus a flow (batch, 2, h, w) in pixels."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.width = width
        self.height = height
        # Plain attributes on purpose: the module has a tensor that is not registered.
        self.rows, self.columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.rows, self.columns = fn(self.rows), fn(self.columns)
        return self

    def forward(self, image: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
        x = self.columns.expand_as(flow[:, 0]).to(flow.dtype) + flow[:, 0]
        y = self.rows.expand_as(flow[:, 1]).to(flow.dtype) + flow[:, 1]
        grid = torch.stack([2 * (x / self.width - 0.5), 2 * (y / self.height - 0.5)], dim=3)
        return F.grid_sample(image, grid, align_corners=False)


class SlowMotion(nn.Module):
    """Interpolates a frame between `first` and `last`, and compares it with the true one.

    The inputs are frame numbers (batch,) from 0 to 6 and three images (batch, 3, size, size). The outputs are the
    interpolated frame (batch, 3, size, size) and the loss, a scalar.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.flow = UNet(6, 4, width)
        self.refine = UNet(20, 5, width)
        self.warp = BackwardWarp(size, size)
        self.perception = vgg16_to_conv4_3().requires_grad_(False)

    def forward(
        self, frame: torch.Tensor, first: torch.Tensor, last: torch.Tensor, truth: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        time = torch.linspace(1 / 8, 7 / 8, FRAMES, dtype=first.dtype, device=first.device)[frame]
        t = time[:, None, None, None]
        flows = self.flow(torch.cat([first, last], dim=1))
        to_last, to_first = flows[:, :2], flows[:, 2:]
        # Equation 4: the flows from the middle frame, as if the motion were locally linear and smooth.
        back = -(1 - t) * t * to_last + t * t * to_first
        ahead = (1 - t) * (1 - t) * to_last - t * (1 - t) * to_first
        from_first, from_last = self.warp(first, back), self.warp(last, ahead)
        known = [first, last, to_last, to_first, ahead, back, from_last, from_first]
        refined = self.refine(torch.cat(known, dim=1))
        back, ahead = refined[:, :2] + back, refined[:, 2:4] + ahead
        visible_first = torch.sigmoid(refined[:, 4:5])
        visible_last = 1 - visible_first
        weight_first, weight_last = (1 - t) * visible_first, t * visible_last
        blended = weight_first * self.warp(first, back) + weight_last * self.warp(last, ahead)
        middle = blended / (weight_first + weight_last)

        reconstruction = F.l1_loss(middle, truth)
        perceptual = F.mse_loss(self.perception(middle), self.perception(truth))
        warping = (
            F.l1_loss(from_first, truth)
            + F.l1_loss(from_last, truth)
            + F.l1_loss(self.warp(first, to_first), last)
            + F.l1_loss(self.warp(last, to_last), first)
        )
        smoothness = total_variation(to_first) + total_variation(to_last)
        return middle, 204 * reconstruction + 102 * warping + 0.005 * perceptual + smoothness


def leaky(x: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(x, negative_slope=0.1)


def total_variation(flow: torch.Tensor) -> torch.Tensor:
    """Returns the mean absolute difference of neighbouring pixels along rows plus that along columns."""
    rows = (flow[:, :, 1:] - flow[:, :, :-1]).abs().mean()
    columns = (flow[:, :, :, 1:] - flow[:, :, :, :-1]).abs().mean()
    return rows + columns


def vgg16_to_conv4_3() -> nn.Module:
    """Build the first ten convolutions of VGG-16 (Simonyan, Zisserman, 2014) for (batch, 3, h, w), with random
    weights.
    """
    layers: list[nn.Module] = []
    before = 3
    for width in VGG_WIDTHS:
        if width is None:
            layers.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(before, width, 3, padding=1)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        layers += [convolution, nn.ReLU(inplace=True)]
        before = width
    return nn.Sequential(*layers[:-1])


def build(size: int, width: int) -> nn.Module:
    return SlowMotion(size, width)
