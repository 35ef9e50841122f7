"""DLRM (Naumov et al.: "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019).

Dense features go through a network, categories through one `nn.EmbeddingBag` each; the dot products of all pairs of
the resulting vectors and the dense vector go through a second network to a probability. Kept from the implementation
that benchmarks it: the bags are sparse, so their weights get SPARSE gradients; the categories arrive as one tensor of
offsets and a list of index tensors; the indices of the pairs are tensors built from Python lists in every forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

CPU = {"tables": 8, "rows": 1000, "width": 16, "bottom": (32, 32), "top": (64, 64, 64)}
FULL = {"tables": 8, "rows": 1_000_000, "width": 64, "bottom": (512, 512), "top": (1024, 1024, 1024)}


def network(sizes: Sequence[int], last: nn.Module) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them and `last` at the end; normal weights as in the paper."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / outputs) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def table(rows: int, width: int) -> nn.EmbeddingBag:
    """Sums of rows, whose gradient names only the rows that were read."""
    bag = nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
    nn.init.uniform_(bag.weight, -((1 / rows) ** 0.5), (1 / rows) ** 0.5)
    return bag


class DLRM(nn.Module):
    """Dense (batch, features), offsets (tables, batch) and per table its indices (any,) to (batch, 1) in (0, 1)."""

    def __init__(self, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(table(rows, width) for _ in range(tables))
        self.bottom = network([*bottom, width], nn.ReLU())
        self.top = network([width + tables * (tables + 1) // 2, *top, 1], nn.Sigmoid())

    def interact(self, dense: Tensor, bags: list[Tensor]) -> Tensor:
        """(batch, width) each to (batch, width + pairs): the dense vector and the dot product of every pair."""
        batch, width = dense.shape
        vectors = torch.cat([dense, *bags], dim=1).view(batch, -1, width)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        count = products.size(1)
        first = torch.tensor([i for i in range(count) for j in range(i)], device=dense.device)
        second = torch.tensor([j for i in range(count) for j in range(i)], device=dense.device)
        return torch.cat([dense, products[:, first, second]], dim=1)

    def forward(self, dense: Tensor, offsets: Tensor, indices: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        bags = [bag(index, offsets[k]) for k, (bag, index) in enumerate(zip(self.tables, indices, strict=True))]
        return self.top(self.interact(x, bags))


def build(tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> nn.Module:
    """A DLRM; `bottom` begins with the dense features, the other sizes are those of hidden layers. Random weights."""
    return DLRM(tables, rows, width, bottom, top)
