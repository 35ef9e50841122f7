"""Accelerate compiles in `prepare`, here the repeated blocks of a model, on handwritten digits."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smelt.integrations.accelerate import SmeltPlugin

digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))


class Reader(nn.Module):
    """Reads the rows of an image one after the other."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


torch.manual_seed(0)
accelerator = Accelerator(cpu=True, dynamo_plugin=SmeltPlugin(use_regional_compilation=True))
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(data, batch_size=64, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
assert losses[-1] < losses[0]
