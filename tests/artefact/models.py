"""Models and functions that artefacts are made for: at the top level of a module, where another process finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ran: list[str] = []
"""What the program did to the outside."""


@dataclass
class Output:
    """What a model of a library returns."""

    loss: Tensor
    logits: Tensor


class Classifier(nn.Module):
    """Products, a normalisation, dropout, and a loss beside the logits."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, width), nn.LayerNorm(width)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(width, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Output:
        logits = self.last(self.drop(F.gelu(self.norm(self.first(x)))))
        return Output(F.cross_entropy(logits, labels), logits)


class Statistics(nn.Module):
    """Writes its buffers in training, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": torch.relu(self.norm(x))}


class Loud(nn.Module):
    """Tells when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        ran.append("forward")
        return torch.dropout(x * self.weight, 0.5, True).sum()


class Branching(nn.Module):
    """Goes one way or the other by a value."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() > 0:
            print("positive")
        return x + 1


def scaled(x: Tensor, y: Tensor, *, by: float = 2.0) -> Tensor:
    """A function of two matrices."""
    return torch.relu(x @ y) * by


def rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """A view of the argument beside what is computed."""
    return x[1:], x.softmax(-1)


def written(x: Tensor) -> Tensor:
    """Writes its argument."""
    x.add_(1)
    return x * 2


def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three results with gradients."""
    h = torch.tanh(x @ w)
    return h, (h * h).sum(), h.exp()


def picked(x: Tensor, at: Tensor) -> Tensor:
    """Fails where an index is out of range."""
    return x[at] * 2


ARGUMENTS: dict[str, Any] = {
    "scaled": lambda: (torch.randn(3, 4), torch.randn(4, 5)),
    "rows": lambda: (torch.randn(3, 4),),
    "written": lambda: (torch.randn(3, 4),),
    "two": lambda: (torch.randn(3, 4), torch.randn(4, 5)),
}
