"""The Omniglot classifier of MAML (Finn, Abbeel, Levine: Model-Agnostic Meta-Learning, 2017), one inner task.

Its batch norms have a momentum of 1, so that the running statistics are those of the last batch: a compiler must not
remove the update of the buffers, although it does not depend on their old values. The batch is always the five images
of a task, whatever batch size the harness requests.
"""

from __future__ import annotations

import torch
from torch import nn

CPU = {"ways": 5, "width": 64}
FULL = {"ways": 5, "width": 64}


class FewShotClassifier(nn.Module):
    """Three convolutions with pooling and a linear layer, which map (batch, 1, 28, 28) to (batch, ways)."""

    def __init__(self, ways: int, width: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(stage(1, width), stage(width, width), stage(width, width))
        self.classify = nn.Linear(width, ways)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classify(self.stages(image).flatten(1))


def stage(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3),
        nn.BatchNorm2d(after, momentum=1.0),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


def build(ways: int, width: int) -> nn.Module:
    return FewShotClassifier(ways, width)
