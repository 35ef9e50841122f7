"""DLRM (Naumov et al.: "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019).

A network maps the dense features to a vector, and an `nn.EmbeddingBag` maps each category to a vector. A second network
computes a probability from the dot products of all pairs of these vectors and the dense vector. As in the
implementation of the public benchmark, the bags are sparse, so that their weights get sparse gradients; the categories
are one tensor of offsets and a list of index tensors; and forward makes the tensors of the pairs' indices from Python
lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

CPU = {"tables": 8, "rows": 1000, "width": 16, "bottom": (32, 32), "top": (64, 64, 64)}
FULL = {"tables": 8, "rows": 1_000_000, "width": 64, "bottom": (512, 512), "top": (1024, 1024, 1024)}


def network(sizes: Sequence[int], last: nn.Module) -> nn.Sequential:
    """Build linear layers of these sizes with ReLUs between them and `last` at the end; normal weights as in
    the paper.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / outputs) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def table(rows: int, width: int) -> nn.EmbeddingBag:
    """Build an embedding bag that sums rows, with a sparse gradient."""
    bag = nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
    nn.init.uniform_(bag.weight, -((1 / rows) ** 0.5), (1 / rows) ** 0.5)
    return bag


class DLRM(nn.Module):
    """Maps dense features (batch, features), offsets (tables, batch) and indices (one list per table) to probabilities
    (batch, 1).
    """

    def __init__(self, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(table(rows, width) for _ in range(tables))
        self.bottom = network([*bottom, width], nn.ReLU())
        self.top = network([width + tables * (tables + 1) // 2, *top, 1], nn.Sigmoid())

    def interact(self, dense: Tensor, bags: list[Tensor]) -> Tensor:
        """Returns (batch, width + pairs): the dense vector and the dot products of all pairs of the given (batch,
        width) vectors.
        """
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
    """Build a DLRM with random weights; `bottom` begins with the number of dense features, the other sizes are of
    hidden layers.
    """
    return DLRM(tables, rows, width, bottom, top)
