"""Whole models compiled once for every size: forward and backward, through all stages, against eager."""

import copy

import pytest
import torch
from torch import nn

import smelt
from tests.autograd.sized import MATMUL_PINS

needs_matmul = pytest.mark.skipif(MATMUL_PINS, reason="matmul of this torch reads plain sizes")


class Block(nn.Module):
    """Embedding, attention with a causal mask, norms, an MLP and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(100, 32), nn.Embedding(128, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 100)

    def forward(self, ids, labels):
        batch, length = ids.shape
        x = self.table(ids) + self.place(torch.arange(length))
        q, k, v = (p.view(batch, length, 4, 8).transpose(1, 2) for p in self.qkv(self.first(x)).chunk(3, dim=-1))
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(~mask, float("-inf"))
        x = x + self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, 32))
        x = x + self.mlp(self.second(x))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Images(nn.Module):
    """Convolutions, batch norm, pooling and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1)).square().mean()


def tokens(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 100, (batch, length)), torch.randint(0, 100, (batch, length))


def images(batch: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, height, width),)


@pytest.mark.parametrize(
    ("model", "inputs", "sizes"),
    [
        pytest.param(Block, tokens, [(4, 16), (2, 2), (3, 17), (7, 64), (64, 5), (5, 100)], marks=needs_matmul),
        (Images, images, [(4, 32, 24), (2, 16, 16), (5, 17, 40), (3, 64, 33)]),
    ],
)
def test_one_graph_serves_every_size(model, inputs, sizes):
    torch.manual_seed(0)
    plain = model()
    ours = copy.deepcopy(plain)
    compiled = smelt.compile(ours, dynamic=True, fullgraph=True)
    graphs = smelt.stats()["graphs"]
    for size in sizes:
        arguments = inputs(*size)
        results = []
        for net in (plain, compiled):
            net.zero_grad()
            loss = net(*arguments)
            loss.backward()
            results.append(loss)
        torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, atol=1e-3, rtol=1e-3)
    assert smelt.stats()["graphs"] == graphs + 1
