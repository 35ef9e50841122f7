"""Training under bfloat16 autocast with Triton kernels is as exact as eager: no more is rounded than there."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton interprets or compiles, by process")


class Normed(nn.Module):
    """Convolution, batch norm with statistics of its own, ReLU."""

    def __init__(self, before: int, after: int, size: int, **options: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(before, after, size, bias=False, **options)
        self.norm = nn.BatchNorm2d(after, eps=1e-3)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.convolution(x)))


class Joined(nn.Module):
    """Inception's reduction: branches of a convolution, a maximum and a mean."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.branch = Normed(before, 8, 3, stride=2)
        self.pooled = Normed(before, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = F.avg_pool2d(self.pooled(x), 3, 2)
        return torch.cat([self.branch(x), F.max_pool2d(x, 3, 2), means], 1)


class Split(nn.Module):
    """ResNeSt's attention over two halves of the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = Normed(channels, 2 * channels, 3, padding=1, groups=2)
        self.squeeze, self.spread = nn.Conv2d(channels, 16, 1), nn.Conv2d(16, 2 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        halves = self.convolution(x).reshape(batch, 2, channels, height, width)
        weights = self.spread(F.relu(self.squeeze(halves.sum(1).mean((2, 3), keepdim=True))))
        return (halves * weights.view(batch, 2, channels, 1, 1).softmax(1)).sum(1)


class Head(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scores = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(F.adaptive_avg_pool2d(x, 1).flatten(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "inception": lambda: nn.Sequential(Normed(3, 8, 3), Joined(8), Joined(24), Head(40)),
    "resnest": lambda: nn.Sequential(Normed(3, 8, 3, stride=2), Split(8), Head(8)),
}


def gradients(model: nn.Module, x: Tensor, target: Tensor, amp: bool, options: dict[str, str] | None = None) -> Tensor:
    """All of them in a row, in float64."""
    call = model if options is None else smelt.compile(model, options=options)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        loss = F.cross_entropy(call(x), target)
    loss.backward()
    return torch.cat([p.grad.double().flatten() / p.grad.norm() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name, train", [("inception", False), ("resnest", True)])
def test_gradients_are_as_exact_as_eagers(name: str, train: bool) -> None:
    model = MODELS[name]().train(train)
    x, target = torch.randn(4, 3, 15, 15), torch.randint(0, 10, (4,))
    exact = gradients(copy.deepcopy(model).double(), x.double(), target, amp=False)
    eager = gradients(copy.deepcopy(model), x, target, amp=True)
    got = gradients(copy.deepcopy(model), x, target, amp=True, options={"target": "triton"})
    # Truncated instead of rounded values, for one, triple the error in eval mode.
    assert (got - exact).norm() < 1.5 * (eager - exact).norm()
