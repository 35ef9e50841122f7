"""`torch.set_default_device`: what the program makes is there, what the compiler makes for itself is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt


@pytest.fixture(autouse=True)
def no_default() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def scaled(x: Tensor) -> Any:
    return (x * 2.5 + 0.1).softmax(-1).sum(-1), torch.get_default_device().type


def sized(x: Tensor) -> Any:
    return x * x.shape[0] / 3.5 + x.shape[1] ** 0.5


def made(x: Tensor) -> Any:
    return torch.zeros(3), torch.arange(4), torch.tensor([1, 2]), torch.eye(2), torch.full((2,), 1.5), x + 1


def on_the_cpu(x: Tensor) -> Any:
    return x + torch.arange(4, device="cpu") * torch.full((4,), 3.0, device="cpu"), F.dropout(x, 0.0), x.cumsum(0)


def resized(x: Tensor) -> Any:
    image = x.reshape(1, 1, 2, -1)
    return F.interpolate(image, scale_factor=2, mode="bilinear"), F.conv2d(image, image), torch.fft.rfft(x).real


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("fn", [scaled, sized, made, on_the_cpu, resized], ids=lambda fn: fn.__name__)
def test_another_default(fn: Callable[[Tensor], Any], backend: str) -> None:
    if fn is made and backend == "smelt":
        backend = "aot_eager"  # kernels are made for a CPU or one GPU
    run = smelt.compile(fn, backend=backend, dynamic=True if fn is sized else None)
    for device in ("meta", "cpu", "meta"):
        torch.set_default_device(device)
        found = []
        for each in (fn, run):
            x = torch.ones(2, 4, device="cpu", requires_grad=True)
            results = each(x)
            kept = [t for t in results if isinstance(t, Tensor)] if isinstance(results, tuple) else [results]
            sum(t.sum() for t in kept if t.requires_grad and t.device.type == "cpu").backward()
            found.append([t.detach() for t in (*kept, x.grad)])
        for eager, compiled in zip(*found, strict=True):
            assert eager.device == compiled.device and eager.shape == compiled.shape
            if eager.device.type == "cpu":
                torch.testing.assert_close(eager, compiled)


def test_a_default_from_before_the_import() -> None:
    program = """
import torch
torch.set_default_device("meta")
import smelt
layer = torch.nn.Linear(4, 4, device="cpu")
x = torch.ones(2, 4, device="cpu")
run = smelt.compile(layer)
for rows in (x, x + 1, torch.ones(3, 4, device="cpu")):
    torch.testing.assert_close(run(rows), layer(rows))
run(x).sum().backward()
assert smelt.stats()["fallbacks"] == 0, smelt.stats()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
