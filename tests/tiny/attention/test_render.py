"""Attention on emulated boards: a transformer's adapters train there with the bits of the simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.tiny import quantize
from smelt.tiny.boards.build import build
from smelt.tiny.program import StepOptions
from smelt.tiny.project.commands import Commands, send
from smelt.tiny.project.export import Budget, export
from smelt.tiny.scheme import Scheme, named
from smelt.tiny.simulate import Training, infer
from tests.tiny.emulated import board_or_skip
from tests.tiny.networks import VisionTransformer
from tests.tiny.test_linear import as_int8


@pytest.mark.parametrize(
    ("name", "scheme", "options"),
    [
        ("mps2-an500", "lora-2", StepOptions()),
        ("mps2-an386", "full", StepOptions(backward="int8")),
        ("rv32-virt", Scheme("both", 3, {4: 1}, {1: 4, 3: 2}), StepOptions("latent", momentum=0.5)),  # type: ignore[dict-item]
    ],
)
def test_a_transformer_trains_on_boards_with_the_bits_of_the_simulation(
    name: str, scheme: str | Scheme, options: StepOptions, tmp_path: Path
) -> None:
    board = board_or_skip(name)
    torch.manual_seed(2)
    images = torch.randn(16, 1, 28, 28)
    graph = quantize(VisionTransformer(form="products"), images)
    scheme = named(scheme, graph) if isinstance(scheme, str) else scheme
    made = export(graph, scheme, tmp_path / "out", board, Budget(ram=64 << 10), options)
    commands, training, wanted = Commands(made.program), Training(made.program), []
    given = as_int8(graph, images)
    for number in range(5):
        commands.train(given[number], number, 0.05)
        wanted.append((training.step(given[number], number, 0.05), training.logits))
    commands.infer(given[5])
    commands.dump()
    sources = sorted(path.name for path in made.folder.glob("*.c"))
    found = send(build(board, sources, made.folder, ("-Werror",)), commands)
    for (loss, logits), (wanted_loss, wanted_logits) in zip(found.values[:5], wanted, strict=True):  # type: ignore[misc]
        assert np.float32(loss) == wanted_loss and (logits == wanted_logits.numpy()).all()
    _, logits = found.values[5]  # type: ignore[misc]
    assert (logits == infer(made.program_of_inference(), given[5:6], training.state)[0].numpy()).all()
    dumped = found.values[6]
    assert isinstance(dumped, dict)
    for key, value in training.state.items():
        assert (dumped[key] == value.numpy()).all(), key
    assert 0 < found.stack <= 4096
