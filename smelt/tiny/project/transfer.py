"""The task of the demo and of measurements: a network that knows five kinds of clothing learns five others.

A small network is trained in PyTorch on classes 0 to 4 of Fashion-MNIST and quantised; on a board its training
continues with classes 5 to 9.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from smelt.tiny.data import Images, fashion_mnist
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import with_head
from smelt.tiny.quantization import quantize
from smelt.tiny.trial import cosine

KNOWN, NEW = range(5), range(5, 10)
CALIBRATION = 256
"""Number of images from whose activations the scales are computed."""


class Block(nn.Module):
    """A 1x1 convolution that adds channels, a depthwise one, and a 1x1 convolution that removes channels; with a
    residual connection if shapes allow.
    """

    def __init__(self, inputs: int, wide: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.around = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        y = self.body(x)
        return x + y if self.around else y


def clothes(classes: int = 5) -> nn.Sequential:
    """Eleven convolutions, 6,000 parameters, 0.4 million products: (n, 1, 28, 28) -> (n, classes).

    An `nn.Sequential`, because capture does not compile frames of smelt's own files.
    """
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(Block(8, 32, 8), Block(8, 32, 16, 2), Block(16, 64, 16)),
        *(nn.Conv2d(16, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU6()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, classes)),
    )


@dataclass(frozen=True)
class Task:
    """The model to adapt and its data.

    Attributes:
        model: trained on the classes `KNOWN`; in evaluation mode.
        known: its accuracy on these classes.
        graph: the quantised model, with a new classifier.
        train, test: images of the new classes.
    """

    model: nn.Module
    known: float
    graph: Int8Graph
    train: Images
    test: Images


def prepare(images: int, epochs: int, seed: int) -> Task:
    """Train a network on the first classes, quantise it, and replace its classifier for the new classes.

    Args:
        images: number of images to train on, at most 30,000.

    Raises:
        DataError: Fashion-MNIST is not installed.
    """
    train, test = fashion_mnist("train"), fashion_mnist("test")
    known = train.only(KNOWN).sample(images, seed)
    torch.manual_seed(seed)
    model = pretrained(clothes(len(KNOWN)), known, epochs, seed)
    found = accuracy(model, test.only(KNOWN))
    graph = quantize(model, known.calibration(CALIBRATION, seed), name="clothes")
    return Task(model, found, with_head(graph, len(NEW), seed), train.only(NEW), test.only(NEW))


def pretrained(model: nn.Module, data: Images, epochs: int, seed: int, batch: int = 64) -> nn.Module:
    """Train with Adam on batches in a random order from `seed`; the model is then in evaluation mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    random, x, y = np.random.default_rng(seed), data.floats(), torch.as_tensor(data.labels)
    batches = max(1, len(data) // batch)
    model.train()
    for step in range(epochs * batches):
        if step % batches == 0:
            order = torch.as_tensor(random.permutation(len(data)))
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * cosine(step, epochs * batches, 0)
        chosen = order[step % batches * batch :][:batch]
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return model.eval()


def accuracy(model: nn.Module, data: Images) -> float:
    """The share of images that a float model classifies correctly."""
    with torch.no_grad():
        return float((model(data.floats()).argmax(1).numpy() == data.labels).mean())
