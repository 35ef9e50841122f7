"""A classifier of handwritten digits, compiled ahead into a file; a fresh process loads the file and trains with it.

python examples/aot.py            makes the artefact, then runs this file again with its name
python examples/aot.py load FILE  loads it: nothing is captured, traced or compiled
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import smelt

BATCH = 64


class Digits(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, pixels, labels):
        scores = self.last(F.gelu(self.hidden(pixels)))
        return F.cross_entropy(scores, labels), scores


def make(path):
    """Shapes and types are enough: nothing runs."""
    model = Digits()
    pixels = torch.empty(BATCH, 64, device="meta")
    labels = torch.empty(BATCH, dtype=torch.int64, device="meta")
    artefact = smelt.compile(model).aot_compile(pixels, labels)  # a training step
    model.eval()
    with torch.no_grad():
        artefact.add(pixels, labels)  # and inference
    artefact.save(path)


def train(path):
    """The model gives the parameters, the artefact the code."""
    torch.manual_seed(0)
    data = load_digits()
    pixels = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    model = smelt.load(path).apply(Digits())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for start in range(0, 1600 - BATCH + 1, BATCH):
            loss, _ = model(pixels[start : start + BATCH], labels[start : start + BATCH])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x, y)[1].argmax(-1) == y).sum()) for x, y in batches(pixels[1600:], labels[1600:]))
    print(f"{right} of 192 digits right, {smelt.stats()['graphs']} graphs compiled here")


def batches(pixels, labels):
    """Batches of the size that the artefact was made for."""
    return [(pixels[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, 192 - BATCH + 1, BATCH)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        train(sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "digits.smelt"
            make(made)
            command = [sys.executable, __file__, "load", str(made)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(done.stdout.strip())
