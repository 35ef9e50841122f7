"""Steps of a pretrained network on an emulated board, compared with the simulation to the bit.

`python -m tests.tiny.board_bits NETWORK [--board rv32-virt] [--backward int8] [--steps 3]`; it takes some minutes, most
of them in the simulation, so it is no test. SMELT_MCU_MODELS names the folder of the pretrained networks.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from smelt.tiny.boards.board import emulated, find_board
from smelt.tiny.boards.build import build
from smelt.tiny.models import load, with_head
from smelt.tiny.program import BACKWARDS, StepOptions
from smelt.tiny.project.commands import Commands, send
from smelt.tiny.project.export import Budget, export
from smelt.tiny.simulate import Training
from tests.tiny import model_files as files
from tests.tiny.figures import CLASSES, STACK, scheme_of

RATE = 0.02


def compare(name: str, board_name: str, options: StepOptions, steps: int) -> str:
    """Train on noise on the board and in the simulation; what was compared, as a line.

    Raises:
        AssertionError: a loss, a logit or a parameter differs.
    """
    graph, board = with_head(load(files.pretrained(name)), CLASSES), find_board(board_name)
    shape, random = graph.tensors[graph.input].shape, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        made = export(graph, scheme_of(graph, 49 << 10), Path(folder) / "out", board, Budget(stack=STACK), options)
        built = build(board, sorted(path.name for path in made.folder.glob("*.c")), made.folder)
        commands, simulated, wanted = Commands(made.program), Training(made.program), []
        for step in range(steps):
            image = random.integers(-128, 128, shape).astype(np.int8)
            commands.train(image, step % CLASSES, RATE)
            wanted.append((simulated.step(image, step % CLASSES, RATE), simulated.logits))
        commands.dump()
        found = send(built, commands)
    for (loss, logits), (wanted_loss, wanted_logits) in zip(found.values[:-1], wanted, strict=True):  # type: ignore[misc]
        assert wanted_logits is not None
        assert np.float32(loss) == wanted_loss and (logits == wanted_logits.numpy()).all()
    dumped = found.values[-1]
    assert isinstance(dumped, dict)
    for key, value in simulated.state.items():
        assert (dumped[key] == value.numpy()).all(), key
    count = found.train_instructions[0] / 1e6
    return (
        f"{name} on {board_name}, backward in {options.backward}: {steps} losses and {len(simulated.state)} parameters "
        f"are equal; RAM {made.ram:,} B, flash {made.flash:,} B, {count:.1f} million instructions a step"
    )


def main() -> None:
    """Compare, and print what was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=files.NAMES)
    parser.add_argument("--board", choices=emulated(), default="rv32-virt")
    parser.add_argument("--backward", choices=BACKWARDS, default="float32")
    parser.add_argument("--steps", type=int, default=3)
    chosen = parser.parse_args()
    print(compare(chosen.network, chosen.board, StepOptions(backward=chosen.backward), chosen.steps))


if __name__ == "__main__":
    main()
