"""Images: Debian's data set, and what is no data set."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from smelt.tiny.data import FASHION_MNIST, DataError, Images, fashion_mnist, read_idx
from smelt.tiny.models import load
from tests.tiny import model_files as files


def images(count: int = 12, size: int = 9) -> Images:
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3)).astype(np.uint8)
    return Images(pixels, np.arange(count) % 4, 4)


@pytest.mark.skipif(not FASHION_MNIST.exists(), reason="no Fashion-MNIST (Debian: dataset-fashion-mnist)")
def test_fashion_mnist_is_read() -> None:
    train, test = fashion_mnist("train"), fashion_mnist("test")
    assert (train.pixels.shape, test.pixels.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    assert np.bincount(train.labels).tolist() == [6000] * 10
    late = test.only(range(5, 10))
    assert len(late) == 5000 and late.classes == 5 and set(late.labels) == set(range(5))


def test_missing_or_damaged_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        fashion_mnist(folder=tmp_path)
    with pytest.raises(DataError, match="no part 'valid'"):
        fashion_mnist("valid")
    path = tmp_path / "x.gz"
    good = b"\0\0\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(6)
    path.write_bytes(gzip.compress(good))
    assert read_idx(path).shape == (2, 3)
    for content, told in [
        (b"no gzip", "cannot be read"),
        (gzip.compress(good)[:-9], "cannot be read"),
        (gzip.compress(b"\0\0\x0d\x01" + bytes(8)), "no IDX file"),
        (gzip.compress(good[:-1]), r"5 values for an array \(2, 3\)"),
        (gzip.compress(good[:7]), "values for an array"),
        (gzip.compress(b""), "no IDX file"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=told):
            read_idx(path)


@pytest.mark.parametrize(
    ("pixels", "labels", "told"),
    [
        (np.zeros((3, 4, 4), np.uint8), [0, 1, 0], r"shape \(3, 4, 4\)"),
        (np.zeros((0, 4, 4, 1), np.uint8), [], "not empty"),
        (np.zeros((3, 4, 4, 1), np.float32), [0, 1, 0], "images of float32"),
        (np.zeros((3, 4, 4, 1), np.uint8), [0, 1], r"3 images and labels of shape \(2,\)"),
        (np.zeros((3, 4, 4, 1), np.uint8), [0, 1, 2], "labels from 0 to 2 for 2 classes"),
        (np.zeros((3, 4, 4, 1), np.uint8), [-1, 1, 0], "labels from -1 to 1"),
        (np.zeros((3, 4, 4, 1), np.uint8), [0.0, 1.0, 0.5], "labels of float64"),
    ],
)
def test_wrong_shapes_and_ranges_are_errors(pixels: np.ndarray, labels: list[float], told: str) -> None:
    with pytest.raises(DataError, match=told):
        Images(pixels, np.array(labels), 2)


def test_some_classes_are_numbered_in_their_order() -> None:
    some = images().only([3, 1])
    assert some.classes == 2 and some.labels.tolist() == [1, 0] * 3
    assert (some.pixels[0] == images().pixels[1]).all()
    for wrong in ([], [4], [0, 9]):
        with pytest.raises(DataError, match="no images of classes"):
            images().only(wrong)


def test_a_sample_is_of_its_seed() -> None:
    first, again, other = (images().sample(5, seed).pixels for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    with pytest.raises(DataError, match="sample of 13 of 12"):
        images().sample(13, 0)


def test_pixels_become_the_input_of_a_graph(tmp_path: Path) -> None:
    graph = load(files.write(tmp_path))
    given = images().quantised(graph)
    assert given.dtype == np.int8 and given.shape == (12, 9, 9, 3)
    x = graph.tensors[graph.input]
    values = (given.astype(float) - x.zero) * x.scale
    assert abs(values - np.clip((images().pixels - 127.5) / 127.5, -128 * x.scale, 127 * x.scale)).max() <= x.scale / 2
    with pytest.raises(DataError, match=r"images are \(8, 8, 3\), net takes \(9, 9, 3\)"):
        images(size=8).quantised(graph)
