"""Forward, backward, clipping and optimizer as one graph, on handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import smelt

digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


@smelt.compile
def step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


losses = []
for number in range(30):
    at = torch.arange(number * 64, number * 64 + 64) % len(images)
    losses.append(step(images[at], labels[at]).item())
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} with {smelt.stats()['graphs']} graph")
assert losses[-1] < losses[0] / 2 and smelt.stats()["graphs"] == 1
