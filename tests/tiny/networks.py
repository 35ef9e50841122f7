"""PyTorch models that tests take all the way to C."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


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


class DepthwiseKernels(nn.Module):
    """Depthwise kernels of odd extents, strides and paddings, on images (n, 1, 9, 13)."""

    def __init__(self) -> None:
        super().__init__()
        shapes = (
            ((11, 1), 1, (5, 0)),
            ((1, 6), 1, (0, 6)),
            (2, 1, 0),
            (3, 3, 1),
            ((3, 2), 1, (0, 2)),
            (3, 2, 1),
            (1, 1, 0),
        )
        own = [nn.Sequential(nn.Conv2d(5, 5, *shape, groups=5), nn.ReLU()) for shape in shapes]
        self.body = nn.Sequential(nn.Conv2d(1, 5, 1), *own, nn.Conv2d(5, 6, 1))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Uneven(nn.Module):
    """Convolutions whose four sides have different numbers of zeros, on images (n, 2, 9, 8): one of all channels, two
    depthwise ones, of which the first is bordered in the backward, and one whose two paddings add up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide = nn.Conv2d(2, 4, 3, 2), nn.Conv2d(4, 6, 1)
        self.own, self.strided = nn.Conv2d(6, 6, (3, 4), groups=6), nn.Conv2d(6, 6, 3, 2, groups=6)
        self.last, self.head = nn.Conv2d(6, 5, 2, padding=(0, 1)), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(functional.pad(x, (0, 1, 2, 0))))
        x = functional.relu(self.wide(x))
        x = functional.relu(self.own(functional.pad(x, (2, 0, 1, 2))))
        x = functional.relu(self.strided(functional.pad(functional.pad(x, (0, 3)), (1, 0, 0, 1))))
        return self.head(self.last(functional.pad(x, (0, 1, 1, 0), value=0.0)).mean((2, 3)))


class Norms(nn.Module):
    """BatchNorm of the image, after a ReLU and after a linear layer; a convolution is the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.conv, self.after = nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False)
        self.hidden, self.norm = nn.Linear(4 * 6 * 6, 8), nn.BatchNorm1d(8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.after(functional.relu(self.conv(self.before(x))))
        x = functional.relu(self.norm(self.hidden(x.flatten(1))))
        return self.head(x[:, :, None, None]).flatten(1)


class Block(nn.Module):
    """A block of a transformer, whose attention is written in one of three ways."""

    def __init__(self, width: int, heads: int, form: str) -> None:
        super().__init__()
        self.heads, self.form = heads, form
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.thin = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, count, width = x.shape
        parts = self.qkv(self.before(x))
        if self.form == "chunks":
            q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in parts.chunk(3, -1))
        else:
            q, k, v = parts.view(n, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.form == "fused":
            y = functional.scaled_dot_product_attention(q, k, v)
        elif self.form == "products":
            y = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
        else:
            y = ((q / q.shape[-1] ** 0.5) @ k.mT).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, count, width))
        return x + self.thin(functional.gelu(self.wide(self.after(x))))


class VisionTransformer(nn.Module):
    """Images (n, 1, 28, 28) in patches, an embedding of positions, one block, a mean over positions, a classifier."""

    def __init__(self, width: int = 16, heads: int = 2, classes: int = 5, form: str = "fused") -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.positions = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        if form == "encoder":
            more = {"activation": "gelu", "batch_first": True, "norm_first": True}
            self.block: nn.Module = nn.TransformerEncoderLayer(width, heads, 2 * width, **more)  # type: ignore[arg-type]
        else:
            self.block = Block(width, heads, form)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.block(x)).mean(1))


FORMS = ("fused", "products", "chunks", "encoder")
"""How the attention of `VisionTransformer` is written."""
