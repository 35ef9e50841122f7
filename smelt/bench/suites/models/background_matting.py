"""Background Matting (Sengupta, Jayaram, Curless, Seitz, Kemelmacher-Shlizerman: The World is Your Green Screen, 2020).

As in the original, the motion frames are encoded although nothing reads the result: the block that should combine them
gets the background's features instead. Therefore the parameters of their encoder get no gradient, but its batch norms
still change their buffers. A compiler may drop this dead computation, but not its side effect.
"""

from __future__ import annotations

import torch
from torch import nn

CPU = {"width": 16, "part": 16, "shared_blocks": 2, "own_blocks": 1}
FULL = {"width": 64, "part": 64, "shared_blocks": 7, "own_blocks": 3}


class Residual(nn.Module):
    """Two reflected 3 x 3 convolutions added to their input, without an activation after the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1),
            *convolution(width, width, 3),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class MattingNetwork(nn.Module):
    """The context switching network, which computes a matte and a foreground from a photo, its background, a mask and
    motion.

    The inputs are image and background (batch, 3, h, w), soft segmentation (batch, 1, h, w) and four grey motion frames
    (batch, 4, h, w), with h and w multiples of 4. The outputs are alpha (batch, 1, h, w) between -1 and 1 and the
    foreground (batch, 3, h, w).
    """

    def __init__(self, width: int, part: int, shared_blocks: int, own_blocks: int) -> None:
        super().__init__()
        deep = 4 * width
        self.encode_image_fine, self.encode_image_coarse = encoder(3, width)
        self.encode_background = nn.Sequential(*encoder(3, width))
        self.encode_mask = nn.Sequential(*encoder(1, width))
        self.encode_motion = nn.Sequential(*encoder(4, width))
        self.combine_background = nn.Sequential(*convolution(2 * deep, part, 1, bias=False))
        self.combine_mask = nn.Sequential(*convolution(2 * deep, part, 1, bias=False))
        self.combine_motion = nn.Sequential(*convolution(2 * deep, part, 1, bias=False))
        self.mix = nn.Sequential(*convolution(deep + 3 * part, deep, 1, bias=False), *residuals(deep, shared_blocks))
        self.refine_alpha = nn.Sequential(*residuals(deep, own_blocks))
        self.refine_foreground = nn.Sequential(*residuals(deep, own_blocks))
        self.decode_alpha = nn.Sequential(
            *enlarge(deep, 2 * width), *enlarge(2 * width, width), nn.ReflectionPad2d(3), nn.Conv2d(width, 1, 7)
        )
        self.decode_foreground_coarse = nn.Sequential(*enlarge(deep, 2 * width))
        self.decode_foreground_fine = nn.Sequential(
            *enlarge(deep, width), nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7)
        )

    def forward(
        self, image: torch.Tensor, background: torch.Tensor, mask: torch.Tensor, motion: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        image_fine = self.encode_image_fine(image)
        image_coarse = self.encode_image_coarse(image_fine)
        with_background = torch.cat([image_coarse, self.encode_background(background)], dim=1)
        with_mask = torch.cat([image_coarse, self.encode_mask(mask)], dim=1)
        self.encode_motion(motion)  # the result is unused, as in the original
        context = [
            self.combine_background(with_background),
            self.combine_mask(with_mask),
            self.combine_motion(with_background),
        ]
        mixed = self.mix(torch.cat([image_coarse, *context], dim=1))
        alpha = torch.tanh(self.decode_alpha(self.refine_alpha(mixed)))
        foreground = self.decode_foreground_coarse(self.refine_foreground(mixed))
        return alpha, self.decode_foreground_fine(torch.cat([foreground, image_fine], dim=1))


def convolution(
    before: int, after: int, size: int, stride: int = 1, padding: int = 0, bias: bool = True
) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, size, stride, padding, bias=bias)
    return [conv, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]


def encoder(planes: int, width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Build the halves of an encoder: from `planes` to 2 * `width` channels at half the size, then 4 * `width` at a
    quarter.
    """
    enter = [nn.ReflectionPad2d(3), *convolution(planes, width, 7)]
    fine = nn.Sequential(*enter, *convolution(width, 2 * width, 3, stride=2, padding=1))
    return fine, nn.Sequential(*convolution(2 * width, 4 * width, 3, stride=2, padding=1))


def residuals(width: int, count: int) -> list[nn.Module]:
    return [Residual(width) for _ in range(count)]


def enlarge(before: int, after: int) -> list[nn.Module]:
    """Build layers that double height and width (with aligned corners), followed by a convolution."""
    up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    return [up, *convolution(before, after, 3, padding=1)]


def build(width: int, part: int, shared_blocks: int, own_blocks: int) -> nn.Module:
    return MattingNetwork(width, part, shared_blocks, own_blocks)
