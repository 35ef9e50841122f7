"""Peak memory of a training step of one image in PyTorch, float32, plain SGD, beside which that of boards is put.

`python -m tests.tiny.pytorch_step NETWORK` prints MiB of tensors, and by how many MiB the process grew.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from torch.nn import functional

from smelt.bench.memory import tensors_mb
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from tests.tiny import float_build
from tests.tiny import model_files as files

CLASSES = 10


def training_step(graph: Int8Graph) -> Callable[[], None]:
    """A full training step; the first call makes the network."""
    net = float_build.FloatNet(graph)
    sgd = torch.optim.SGD(net.parameters(), 0.01)
    height, width, channels = graph.tensors[graph.input].shape
    image, label = torch.randn(1, channels, height, width), torch.tensor([1])

    def step() -> None:
        sgd.zero_grad()
        functional.cross_entropy(net(image), label).backward()
        sgd.step()

    return step


def tensors_peak(graph: Int8Graph) -> float:
    """Most MiB of tensors in a step, parameters and gradients included."""
    step = training_step(graph)
    step()
    return tensors_mb(step)


def peaks(name: str) -> tuple[float, float]:
    """Most MiB of tensors, and of a process: one that imports torch alone, and what the step adds to it."""
    alone = "import resource, torch; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    tensors, grown = map(float, _printed("-m", "tests.tiny.pytorch_step", name).split())
    return tensors, float(_printed("-c", alone)) + grown


def _printed(*command: str) -> str:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True).stdout


def resident_mb() -> float:
    """Most MiB that this process had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the two figures of a network."""
    graph = with_head(load(files.pretrained(sys.argv[1])), CLASSES)
    before = resident_mb()
    training_step(graph)()
    grown = resident_mb() - before
    print(f"{tensors_peak(graph):.2f} {grown:.2f}")


if __name__ == "__main__":
    main()
