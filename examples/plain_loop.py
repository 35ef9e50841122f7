"""A training loop with a compiled model, on handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import smelt

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, 64), nn.GELU(),
    nn.Linear(64, 10),
)  # fmt: skip
compiled = smelt.compile(model)  # the one line
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(40):
    at = torch.arange(step * 64, step * 64 + 64) % 1500
    loss = nn.functional.cross_entropy(compiled(images[at]), labels[at])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    right = (compiled(images[1500:]).argmax(-1) == labels[1500:]).float().mean()
print(f"right on digits that it has not seen: {right.item():.2f}")
assert right > 0.6
