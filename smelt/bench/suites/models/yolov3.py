"""YOLOv3 with spatial pyramid pooling (Redmon, Farhadi: YOLOv3, 2018; He et al.: Spatial Pyramid Pooling, 2014).

The network is a table of 114 layers that forward interprets: it tests the name of each module's class, and keeps a list
of earlier outputs for the layers that concatenate or add some of them. Unrolled, this is a graph without branches; in
Python, it is a loop over a long list of modules with look-ups. Only the training form, which returns the three raw
maps, is implemented.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

CPU = {"classes": 80, "width": 32}
FULL = {"classes": 80, "width": 32}

ANCHORS = 3
"""Number of boxes predicted at each position of each of the three maps."""


class Concatenate(nn.Module):
    """Joins outputs along the channels; `layers` are their indices in the list, negative ones counted from its end."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor, outputs: list[torch.Tensor | None]) -> torch.Tensor:
        chosen = [output for layer in self.layers if (output := outputs[layer]) is not None]
        return torch.cat(chosen, dim=1) if len(chosen) > 1 else chosen[0]


class Add(nn.Module):
    """Adds the output of the layer `layer` to the last one."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layers = [layer]

    def forward(self, x: torch.Tensor, outputs: list[torch.Tensor | None]) -> torch.Tensor:
        earlier = outputs[self.layers[0]]
        return x if earlier is None else x + earlier


class Boxes(nn.Module):
    """Reshapes (batch, anchors * (classes + 5), h, w) to (batch, anchors, h, w, classes + 5)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fields = classes + 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = x.shape
        return x.view(batch, ANCHORS, self.fields, height, width).permute(0, 1, 3, 4, 2).contiguous()


class Layers:
    """Collects the layers in order, with the width of each output, and makes backward references absolute."""

    def __init__(self, planes: int) -> None:
        self.planes = planes
        self.modules: list[nn.Module] = []
        self.widths: list[int] = []

    def add(self, module: nn.Module, width: int | None = None) -> None:
        self.widths.append(self.widths[-1] if width is None else width)
        self.modules.append(module)

    def convolution(self, width: int, kernel: int, stride: int = 1) -> None:
        before = self.widths[-1] if self.widths else self.planes
        block = nn.Sequential(
            nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(width, momentum=0.03, eps=1e-4),
            nn.LeakyReLU(0.1, inplace=True),
        )
        self.add(block, width)

    def residuals(self, width: int, count: int) -> None:
        """Add a convolution that halves the map, with `width` channels, then `count` blocks of a narrow and a wide
        convolution.
        """
        self.convolution(width, 3, stride=2)
        for _ in range(count):
            self.convolution(width // 2, 1)
            self.convolution(width, 3)
            self.add(Add(-3))

    def join(self, *layers: int) -> None:
        self.add(Concatenate(layers), sum(self.widths[layer] for layer in layers))

    def alternate(self, width: int, count: int) -> None:
        for _ in range(count):
            self.convolution(width, 1)
            self.convolution(2 * width, 3)

    def detect(self, classes: int) -> None:
        width = ANCHORS * (classes + 5)
        self.add(nn.Conv2d(self.widths[-1], width, 1), width)
        self.add(Boxes(classes))

    def enlarge(self, width: int, skipped: int) -> None:
        """Add layers that continue from before the last detection at twice the size, joined with the backbone's layer
        `skipped`.
        """
        self.join(-4)
        self.convolution(width, 1)
        self.add(nn.Upsample(scale_factor=2))
        self.join(-1, skipped)


class Yolo(nn.Module):
    """Maps images (batch, 3, h, w) to three maps (batch, anchors, h / s, w / s, classes + 5) for s of 32, 16 and 8.

    Height and width are multiples of 32. The backbone is Darknet-53, `width` the channels of its first convolution.
    """

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        layers = Layers(planes=3)
        layers.convolution(width, 3)
        for factor, count in ((2, 1), (4, 2), (8, 8)):
            layers.residuals(factor * width, count)
        fine = len(layers.modules) - 1
        layers.residuals(16 * width, 8)
        middle = len(layers.modules) - 1
        layers.residuals(32 * width, 4)

        layers.alternate(16 * width, 1)
        layers.convolution(16 * width, 1)
        for kernel, back in ((5, -2), (9, -4)):
            layers.add(nn.MaxPool2d(kernel, stride=1, padding=kernel // 2))
            layers.join(back)
        layers.add(nn.MaxPool2d(13, stride=1, padding=6))
        layers.join(-1, -3, -5, -6)
        layers.alternate(16 * width, 2)
        layers.detect(classes)
        layers.enlarge(8 * width, middle)
        layers.alternate(8 * width, 3)
        layers.detect(classes)
        layers.enlarge(4 * width, fine)
        layers.alternate(4 * width, 3)
        layers.detect(classes)
        self.layers = nn.ModuleList(layers.modules)
        self.kept = kept_outputs(layers.modules)

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        x = image
        outputs: list[torch.Tensor | None] = []
        found = []
        for layer, keep in zip(self.layers, self.kept, strict=True):
            name = layer.__class__.__name__
            if name in ("Concatenate", "Add"):
                x = layer(x, outputs)
            elif name == "Boxes":
                found.append(layer(x))
            else:
                x = layer(x)
            outputs.append(x if keep else None)
        return found


def kept_outputs(modules: Sequence[nn.Module]) -> list[bool]:
    """Returns for each output whether a later layer reads it; the others are freed at once."""
    kept = [False] * len(modules)
    for position, module in enumerate(modules):
        if isinstance(module, Concatenate | Add):
            for layer in module.layers:
                kept[layer if layer >= 0 else position + layer] = True
    return kept


def build(classes: int, width: int) -> nn.Module:
    return Yolo(classes, width)
