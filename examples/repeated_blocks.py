"""A deep model whose repeated blocks compile once."""

import torch
from torch import nn

import smelt


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(24))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model = Model()
compiled = smelt.compile_regions(model)
x = torch.randn(8, 32, requires_grad=True)
torch.testing.assert_close(compiled(x), model(x))
print(f"{len(model.blocks)} blocks, {smelt.stats()['graphs']} graph")
assert smelt.stats()["graphs"] == 1
