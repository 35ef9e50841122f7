"""The speaker encoder of Wan, Wang, Papir, Lopez Moreno: "Generalized End-to-End Loss for Speaker Verification"
(2018), which text-to-speech trains with the angular prototypical loss (Chung et al.: "In Defence of Metric Learning
for Speaker Recognition", 2020): three LSTM layers with projections, the last frame, length one.

As in the implementation of the public benchmark, every layer calls `flatten_parameters()` in forward, which moves the
memory of the LSTM's weights on a GPU, and then an `nn.LSTM` whose projection is a separate linear layer.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

CPU = {"features": 40, "projection": 32, "hidden": 64}
FULL = {"features": 40, "projection": 256, "hidden": 768}


class ProjectedLSTM(nn.Module):
    """An LSTM layer with a projection, which maps (batch, time, inputs) to (batch, time, projection)."""

    def __init__(self, inputs: int, hidden: int, projection: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, projection, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        self.lstm.flatten_parameters()
        states, _ = self.lstm(x)
        return self.linear(states)


class SpeakerEncoder(nn.Module):
    """Maps mel frames (batch, time, features) to one vector of length 1 per utterance, (batch, projection)."""

    def __init__(self, features: int, projection: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [features] + [projection] * (layers - 1)
        self.layers = nn.Sequential(*(ProjectedLSTM(size, hidden, projection) for size in sizes))
        for name, parameter in self.layers.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.layers(x)[:, -1], p=2.0, dim=1)


def build(features: int, projection: int, hidden: int, layers: int = 3) -> nn.Module:
    """Build a speaker encoder of the given widths, with random weights."""
    return SpeakerEncoder(features, projection, hidden, layers)
