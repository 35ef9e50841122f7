"""PyTorch models that tests take all the way to C."""

from __future__ import annotations

import torch
from torch import nn


def convolution(inputs: int, outputs: int, kernel: tuple[int, int], **more: object) -> nn.Sequential:
    """A convolution with BatchNorm and ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **more)  # type: ignore[arg-type]
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class DsCnn(nn.Module):
    """Keyword spotting after "Hello Edge" (arXiv 1711.07128) and MLPerf Tiny: images of 49 x 10 audio features."""

    def __init__(self, width: int = 64, classes: int = 12) -> None:
        super().__init__()
        self.stem = convolution(1, width, (10, 4), stride=2, padding=(5, 1))
        blocks = []
        for _ in range(4):
            blocks += [convolution(width, width, (3, 3), padding=1, groups=width), convolution(width, width, (1, 1))]
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AvgPool2d((25, 5))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


def with_statistics(model: nn.Module, *shape: int) -> nn.Module:
    """The model after some batches of noise, so that its BatchNorms have statistics."""
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(8, *shape))
    return model
