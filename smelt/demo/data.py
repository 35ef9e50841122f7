"""Loads real data that is installed locally: source text of Python's standard library, scikit-learn's digits."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""Newline and printable ASCII; other characters are left out of the text."""


@dataclass(frozen=True)
class Text:
    """Token ids of the training text and of the held-out text, each of shape (characters,)."""

    train: Tensor
    held_out: Tensor

    def batches(self, seed: int, batch: int, length: int) -> Iterator[Tensor]:
        """Endless batches of random windows of the training text, shape (batch, length); equal for equal seeds."""
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.arange(length)
        while True:
            starts = torch.randint(0, len(self.train) - length, (batch, 1), generator=generator)
            yield self.train[starts + offsets]

    def windows(self, batch: int, length: int, count: int) -> Iterator[Tensor]:
        """`count` consecutive batches of the held-out text, shape (batch, length)."""
        size = batch * length
        for index in range(min(count, len(self.held_out) // size)):
            yield self.held_out[index * size : (index + 1) * size].view(batch, length)


def standard_library_text(characters: int = 2_000_000) -> Text:
    """The first `characters` of the installed standard library's top-level modules; a tenth is held out."""
    texts, size = [], 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(file.read_text(encoding="utf-8", errors="ignore"))
        size += len(texts[-1])
        if size >= characters:
            break
    tokens = encode("".join(texts)[:characters])
    border = len(tokens) * 9 // 10
    return Text(tokens[:border], tokens[border:])


def encode(text: str) -> Tensor:
    """Token ids of a text, int64, shape (characters in ALPHABET,)."""
    ids = {character: index for index, character in enumerate(ALPHABET)}
    return torch.tensor([ids[character] for character in text if character in ids])


def decode(tokens: Tensor) -> str:
    """The text of token ids."""
    return "".join(ALPHABET[index] for index in tokens.tolist())


@dataclass(frozen=True)
class Digits:
    """Images of shape (n, 1, 32, 32), with mean 0 and variance 1, and their digits of shape (n,)."""

    images: Tensor
    targets: Tensor
    test_images: Tensor
    test_targets: Tensor

    def batches(self, seed: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless batches of epochs in random order, whole batches only; equal for equal seeds."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.targets), generator=generator)
            for start in range(0, len(order) - batch + 1, batch):
                chosen = order[start : start + batch]
                yield self.images[chosen], self.targets[chosen]


def handwritten_digits(size: int = 32) -> Digits:
    """scikit-learn's 1,797 scanned digits (8x8, enlarged to `size`); every fifth one is held out."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None]
    images = (images - images.mean()) / images.std()
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    targets = torch.tensor(found.target, dtype=torch.int64)
    held_out = torch.arange(len(targets)) % 5 == 0
    return Digits(images[~held_out], targets[~held_out], images[held_out], targets[held_out])
