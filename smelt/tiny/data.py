"""Labelled images for training: Fashion-MNIST as Debian installs it, and checks of the user's images."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from smelt.base.errors import SmeltError
from smelt.tiny.graph import Int8Graph

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""The folder in which Debian's package dataset-fashion-mnist installs the files."""

_INSTALL = "apt-get install dataset-fashion-mnist (Debian), or set SMELT_FASHION_MNIST to a folder with its four files"
_UNSIGNED_BYTES = 8
"""The IDX format's type code for unsigned bytes."""


class DataError(SmeltError):
    """Images or labels are missing, damaged, or of a shape or range that the model does not take."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images.

    Attributes:
        pixels: uint8, (count, height, width, channels).
        labels: int64, (count,), from 0 to classes - 1.
    """

    pixels: np.ndarray
    labels: np.ndarray
    classes: int

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, np.ndarray) or self.pixels.ndim != 4 or 0 in self.pixels.shape:
            raise DataError(
                f"images of shape {np.shape(self.pixels)}", hint="an array (count, height, width, channels), not empty"
            )
        if self.pixels.dtype != np.uint8:
            raise DataError(f"images of {self.pixels.dtype}", hint="uint8 from 0 to 255; (x * 255).astype(np.uint8)")
        if np.shape(self.labels) != self.pixels.shape[:1]:
            raise DataError(f"{len(self.pixels)} images and labels of shape {np.shape(self.labels)}")
        labels = np.asarray(self.labels)
        if labels.dtype.kind not in "iu":
            raise DataError(f"labels of {labels.dtype}", hint="integers")
        if labels.min() < 0 or labels.max() >= self.classes:
            raise DataError(
                f"labels from {labels.min()} to {labels.max()} for {self.classes} classes",
                hint=f"from 0 to {self.classes - 1}; `only` numbers some classes anew",
            )
        object.__setattr__(self, "labels", labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.pixels)

    def only(self, classes: Iterable[int]) -> Images:
        """The images of the given classes, whose labels become their positions in `classes`.

        Raises:
            DataError: a class does not exist or has no image.
        """
        chosen = list(classes)
        if not chosen or not set(chosen) <= set(self.labels.tolist()):
            raise DataError(f"no images of classes {chosen}", hint=f"there are {sorted(set(self.labels.tolist()))}")
        number = np.full(self.classes, -1)
        number[chosen] = np.arange(len(chosen))
        kept = number[self.labels] >= 0
        return Images(self.pixels[kept], number[self.labels[kept]], len(chosen))

    def sample(self, count: int, seed: int) -> Images:
        """`count` images drawn without repetition, the same for the same seed.

        Raises:
            DataError: there are fewer images.
        """
        if not 0 < count <= len(self):
            raise DataError(f"a sample of {count} of {len(self)} images")
        at = np.random.default_rng(seed).choice(len(self), count, replace=False)
        return Images(self.pixels[at], self.labels[at], self.classes)

    def calibration(self, count: int, seed: int) -> torch.Tensor:
        """`count` random images, or all if there are fewer, in the form that `floats` returns."""
        return self.sample(min(count, len(self)), seed).floats()

    def floats(self) -> torch.Tensor:
        """The images as a float model takes them: (n, channels, height, width), from -1 to 1."""
        return (torch.as_tensor(self.pixels).permute(0, 3, 1, 2).float() - 127.5) / 127.5

    def quantised(self, graph: Int8Graph) -> np.ndarray:
        """The images as the input of a graph: int8, (count, height, width, channels).

        Pixels from 0 to 255 are values from -1 to 1, as the networks are trained: (p - 127.5) / 127.5.

        Raises:
            DataError: the graph takes images of another shape.
        """
        wanted = graph.tensors[graph.input]
        if self.pixels.shape[1:] != wanted.shape:
            raise DataError(
                f"images are {self.pixels.shape[1:]}, {graph.name} takes {wanted.shape}",
                hint="(height, width, channels); resize them, or load the model with their size",
            )
        levels = (np.arange(256) - 127.5) / 127.5
        table = np.clip(np.rint(levels / wanted.scale) + wanted.zero, -128, 127).astype(np.int8)
        return table[self.pixels]


def fashion_mnist(part: str = "train", folder: str | Path | None = None) -> Images:
    """Images of clothing, 28x28x1, of 10 classes: 60,000 of `train`, 10,000 of `test`.

    Args:
        folder: the folder with the four files of Zalando's data set; None: that of the environment variable
            SMELT_FASHION_MNIST, else that of Debian's package.

    Raises:
        DataError: the files are missing or damaged.
    """
    if part not in ("train", "test"):
        raise DataError(f"Fashion-MNIST has no part {part!r}", hint="train or test")
    path = Path(folder or os.environ.get("SMELT_FASHION_MNIST") or FASHION_MNIST)
    prefix = {"train": "train", "test": "t10k"}[part]
    pixels = read_idx(path / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(path / f"{prefix}-labels-idx1-ubyte.gz")
    if pixels.ndim != 3 or labels.ndim != 1:
        raise DataError(f"the files of {path} hold arrays {pixels.shape} and {labels.shape}", hint=_INSTALL)
    return Images(pixels[..., None], labels, 10)


def read_idx(path: Path) -> np.ndarray:
    """The array of a gzipped file of the IDX format, of unsigned bytes (yann.lecun.com/exdb/mnist).

    Raises:
        DataError: there is no such file, or it has another format.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}", hint=_INSTALL) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read", why=str(error), hint=_INSTALL) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise DataError(f"{path} is no IDX file of unsigned bytes", hint=_INSTALL)
    begin = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, begin, 4))
    if len(content) < begin or len(content) - begin != math.prod(shape):
        raise DataError(f"{path} has {len(content) - begin} values for an array {shape}", hint=_INSTALL)
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
