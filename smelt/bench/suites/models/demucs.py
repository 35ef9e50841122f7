"""Demucs (Défossez, Usunier, Bottou, Bach: "Music Source Separation in the Waveform Domain", 2019), first version:
strided convolutions with GLU down, a bidirectional LSTM, transposed convolutions up, skips between the two.

As in the implementation of the public benchmark, the measured module is the forward of a training step. In train mode
it augments the tracks at random (shift, flipped signs, swapped channels, sources mixed between the songs of a group),
adds them up, and separates the sum. So forward draws random numbers by `randint` and `rand`, and sorts and gathers by
them. Skips are trimmed, nothing is padded; one GLU module is used in all levels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CPU = {"channels": 8, "depth": 4, "lstm_layers": 1, "shift": 500, "group": 2}
FULL = {"channels": 64, "depth": 6, "lstm_layers": 2, "shift": 44100, "group": 4}


class Shift(nn.Module):
    """Drops `shift` samples of (batch, sources, channels, time); in train mode, each source begins at a random
    sample.
    """

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        batch, sources, channels, time = x.shape
        length = time - self.shift
        if not self.training:
            return x[..., :length]
        begin = torch.randint(self.shift, (batch, sources, 1, 1), device=x.device)
        positions = begin.expand(-1, -1, channels, -1) + torch.arange(length, device=x.device)
        return x.gather(3, positions)


class FlipChannels(nn.Module):
    """Swaps the left and right channels of random sources in train mode."""

    def forward(self, x: Tensor) -> Tensor:
        batch, sources, channels, time = x.shape
        if self.training and channels == 2:
            left = torch.randint(2, (batch, sources, 1, 1), device=x.device).expand(-1, -1, -1, time)
            x = torch.cat([x.gather(2, left), x.gather(2, 1 - left)], dim=2)
        return x


class FlipSign(nn.Module):
    """Negates random sources in train mode."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x * (2 * torch.randint(2, (x.size(0), x.size(1), 1, 1), device=x.device, dtype=x.dtype) - 1)
        return x


class Remix(nn.Module):
    """Exchanges sources between the songs of each group in train mode; `group`, its size, divides the batch size."""

    def __init__(self, group: int) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        batch, sources, channels, time = x.shape
        if batch % self.group:
            raise ValueError(f"a batch of {batch} does not divide into groups of {self.group}")
        x = x.view(batch // self.group, self.group, sources, channels, time)
        order = torch.argsort(torch.rand(*x.shape[:3], 1, 1, device=x.device), dim=1)
        return x.gather(1, order.expand(-1, -1, -1, channels, time)).view(batch, sources, channels, time)


class BLSTM(nn.Module):
    """A bidirectional LSTM over time and a linear layer to `size`: maps (batch, size, time) to the same shape."""

    def __init__(self, size: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, size, num_layers=layers, bidirectional=True)
        self.linear = nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)


def trim(x: Tensor, reference: Tensor) -> Tensor:
    """Returns the middle of x along the time dimension, with the length of the reference."""
    surplus = x.size(-1) - reference.size(-1)
    if surplus < 0:
        raise ValueError(f"a length of {x.size(-1)} cannot be trimmed to {reference.size(-1)}")
    return x[..., surplus // 2 : x.size(-1) - (surplus - surplus // 2)] if surplus else x


def rescale(model: nn.Module, reference: float) -> None:
    """Divide the weights and biases of convolutions by sqrt(std of the weights / reference), as in the paper."""
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
            scale = (module.weight.detach().std() / reference) ** 0.5
            for parameter in module.parameters():
                parameter.data /= scale


class Demucs(nn.Module):
    """Separates a mix (batch, audio, time) into estimates (batch, sources, audio, about time)."""

    def __init__(self, sources: int, audio: int, channels: int, depth: int, lstm_layers: int) -> None:
        super().__init__()
        self.sources = sources
        self.audio = audio
        self.encoder = nn.ModuleList()
        self.decoder = nn.ModuleList()
        gate = nn.GLU(dim=1)
        inputs, outputs = audio, sources * audio
        for level in range(depth):
            down = nn.Conv1d(inputs, channels, 8, stride=4), nn.ReLU(), nn.Conv1d(channels, 2 * channels, 1), gate
            self.encoder.append(nn.Sequential(*down))
            up = nn.Conv1d(channels, 2 * channels, 3), gate, nn.ConvTranspose1d(channels, outputs, 8, stride=4)
            self.decoder.insert(0, nn.Sequential(*up, *([nn.ReLU()] if level else [])))
            inputs = outputs = channels
            channels *= 2
        self.lstm = BLSTM(inputs, lstm_layers)
        rescale(self, reference=0.1)

    def forward(self, mix: Tensor) -> Tensor:
        x = mix
        saved = []
        for encode in self.encoder:
            x = encode(x)
            saved.append(x)
        x = self.lstm(x)
        for decode in self.decoder:
            x = decode(x + trim(saved.pop(-1), x))
        return x.view(x.size(0), self.sources, self.audio, x.size(-1))


class DemucsStep(nn.Module):
    """Maps tracks (batch, 1 + sources, audio, time), the first of which is unused, to (augmented sources,
    estimates).
    """

    def __init__(self, model: Demucs, shift: int, group: int) -> None:
        super().__init__()
        self.model = model
        self.augment = nn.Sequential(Shift(shift), FlipSign(), FlipChannels(), Remix(group))

    def forward(self, tracks: Tensor) -> tuple[Tensor, Tensor]:
        sources = self.augment(tracks[:, 1:])
        return sources, self.model(sources.sum(dim=1))


def build(
    channels: int, depth: int, lstm_layers: int, shift: int, group: int, sources: int = 4, audio: int = 2
) -> nn.Module:
    """Build a Demucs of the given width and depth with its augmentation and random weights."""
    return DemucsStep(Demucs(sources, audio, channels, depth, lstm_layers), shift, group)
