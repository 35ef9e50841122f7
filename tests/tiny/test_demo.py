"""The demo, with every step on a few images: what it trains on the board, and what it writes."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from smelt.base.errors import SmeltError
from smelt.tiny.data import FASHION_MNIST, Images
from smelt.tiny.program import StepOptions
from smelt.tiny.project.demo import QUICK, Size, _parts, compare, run_demo
from smelt.tiny.project.transfer import accuracy, clothes, pretrained
from smelt.tiny.quantization import quantize
from smelt.tiny.scheme import Scheme
from smelt.tiny.simulate import Training
from smelt.tiny.step import step_program
from smelt.tiny.trial import cosine, recipe
from tests.tiny.emulated import board_or_skip


def test_the_demo(tmp_path: Path) -> None:
    board = board_or_skip("mps2-an500")
    if not FASHION_MNIST.exists():
        pytest.skip("apt-get install dataset-fashion-mnist")
    console = Console(file=io.StringIO(), width=120)
    adapted = run_demo(board, tmp_path / "out", console, QUICK)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert [one.scheme.name for one in adapted] == ["classifier", "biases", "last 3 layers", "sparse", "full"]
    for one in adapted:
        assert [seen for seen, _ in one.seen] == [0, 12, 24]
        assert all(0 <= accuracy <= 1 for _, accuracy in one.seen) and one.scheme.name in told
        assert 0 < one.stack <= 4096 < one.ram and one.flash > 0
    by_name = {one.scheme.name: one for one in adapted}
    assert by_name["classifier"].ram <= by_name["sparse"].ram <= by_name["last 3 layers"].ram + 64
    assert by_name["last 3 layers"].ram < by_name["full"].ram
    assert 0 < by_name["classifier"].instructions < by_name["full"].instructions
    text = (tmp_path / "out" / "schemes.md").read_text()
    assert all(f"| {one.scheme} | {one.seen[-1][1]:.1%} | {one.ram:,} |" in text for one in adapted)
    assert (tmp_path / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def blobs(count: int) -> Images:
    """A bright square that lies left or right."""
    labels = np.arange(count) % 2
    pixels = np.random.default_rng(0).integers(0, 60, (count, 28, 28, 1)).astype(np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[8:20, 2 + 14 * label : 12 + 14 * label] += 180
    return Images(pixels, labels, 2)


def test_the_network_learns() -> None:
    torch.manual_seed(0)
    data = blobs(64)
    assert accuracy(pretrained(clothes(2), data, 6, seed=0, batch=8), data) > 0.9
    assert 5000 < sum(one.numel() for one in clothes().parameters()) < 7000


def test_other_bits_are_an_error() -> None:
    data = blobs(8)
    graph = quantize(clothes(2).eval(), data.calibration(8, 0))
    program = step_program(graph, Scheme("bias", 1), StepOptions())
    steps = [(image, int(label), 0.05) for image, label in zip(data.quantised(graph), data.labels, strict=True)]
    training = Training(program)
    losses = [float(training.step(*step)) for step in steps]
    compare([(loss, np.zeros(2)) for loss in losses], program, steps)
    losses[5] = float(np.nextafter(np.float32(losses[5]), np.float32(9)))
    with pytest.raises(SmeltError, match="step 5 on the board has a loss other than"):
        compare([(loss, np.zeros(2)) for loss in losses], program, steps)


def test_rates_and_sections() -> None:
    assert recipe(100, 0.1).argmax() in (9, 10) and recipe(100, 0.1)[-1] < 1e-3 < recipe(100, 0.1)[0]
    assert cosine(5, 10, 0) == pytest.approx(0.5)
    size = dataclasses.replace(Size(), steps=10, looks=3)
    assert [list(one) for one in _parts(size)] == [[], [0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]
