"""Writes the commands that a project's program reads (see its main.c), and reads the answers that it writes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from smelt.base.errors import SmeltError
from smelt.tiny.boards.build import Program as Built
from smelt.tiny.boards.emulate import EmulationError, run
from smelt.tiny.program import Program
from smelt.tiny.render_c import trained_bytes
from smelt.tiny.simulate import checked_step


@dataclass
class Commands:
    """Commands in order, which `send` passes to the program.

    Attributes:
        program: the training step that the project was made from.
    """

    program: Program
    writes: list[tuple[str, bytes]] = field(default_factory=list)

    def train(self, image: np.ndarray, label: int, rate: float) -> None:
        """A training step; answered by the loss and the logits before it.

        Raises:
            SmeltError: an image of another shape or type, a label that is no class, or a rate that is not finite.
        """
        self._add("T", self._image(image), *checked_step(self.program.graph, label, rate))

    def infer(self, image: np.ndarray) -> None:
        """An inference; answered by the class and the logits.

        Raises:
            SmeltError: an image of another shape or type.
        """
        self._add("I", self._image(image))

    def save(self) -> None:
        """Write a checkpoint; answered by a status."""
        self._add("S")

    def load(self) -> None:
        """Restore the newest complete checkpoint; answered by a status."""
        self._add("L")

    def dump(self) -> None:
        """Return all trained parameters; answered by arrays, by their names in the program."""
        self._add("D")

    def _image(self, image: np.ndarray) -> bytes:
        graph = self.program.graph
        wanted = graph.tensors[graph.input].shape
        if image.dtype != np.int8 or image.shape != wanted:
            raise SmeltError(f"{graph.name} takes int8 images {wanted}, got {image.dtype} {image.shape}")
        return image.tobytes()

    def _add(self, what: str, image: bytes = b"", label: int = 0, rate: float = 0.0) -> None:
        self.writes.append((what, struct.pack("<IIf", ord(what), label, rate) + image))


@dataclass(frozen=True)
class Answers:
    """The answers of a program.

    Attributes:
        values: one for each command: (loss, logits), (class, logits), a status, or arrays by name.
        stack: maximum number of bytes of stack in use; 0 on the host.
        train_instructions, infer_instructions: number of instructions of each `train` and `infer` command, exact to 40
            on Arm; 0 on the host.
    """

    values: list[tuple[float, np.ndarray] | tuple[int, np.ndarray] | int | dict[str, np.ndarray]]
    stack: int
    train_instructions: list[int]
    infer_instructions: list[int]


def send(built: Built, commands: Commands, limit_s: float = 240.0) -> Answers:
    """Run a project's program on the commands, under the board's emulator or on this machine; return its answers.

    Raises:
        BoardFault: the program faulted.
        EmulationError: the emulator timed out or failed.
    """
    folder = built.path.parent
    (folder / "commands.bin").write_bytes(b"".join(content for _, content in commands.writes))
    ran = run(built, folder, limit_s)
    content = (folder / "answers.bin").read_bytes()
    try:
        values = list(_parsed(commands, content))
    except struct.error as error:
        raise EmulationError(f"the program on {built.board.name} answered too little", why=str(error)) from error
    counts: dict[str, list[int]] = {"train": [], "infer": [], "stack": [0]}
    for line in ran.output.splitlines():
        name, _, number = line.partition("=")
        if name.partition("_")[0] in counts and number.isdecimal():
            counts[name.partition("_")[0]].append(int(number))
    return Answers(values, counts["stack"][-1], counts["train"], counts["infer"])


def _parsed(
    commands: Commands, content: bytes
) -> Iterator[tuple[float, np.ndarray] | tuple[int, np.ndarray] | int | dict[str, np.ndarray]]:
    at = 0
    logits = 4 * commands.program.graph.classes
    for what, _ in commands.writes:
        if what in "TI":
            (first,) = struct.unpack_from("<f" if what == "T" else "<i", content, at)
            yield first, np.frombuffer(content, np.float32, logits // 4, at + 4)
            at += 4 + logits
        elif what == "D":
            values, size = unpacked(commands.program, content[at:])
            at += size
            yield values
        else:
            yield struct.unpack_from("<i", content, at)[0]
            at += 4


def unpacked(program: Program, content: bytes) -> tuple[dict[str, np.ndarray], int]:
    """The fields of `struct model_trained` by name, and its size in bytes. The count of steps comes first, then fields
    in order of decreasing element size.

    Raises:
        struct.error: there are too few bytes.
    """
    held = sorted(program.trained.values(), key=lambda one: -one.data.itemsize)
    size = -(-sum(one.bytes for one in held) // 4) * 4 + 4
    if len(content) < size:
        raise struct.error(f"{len(content)} bytes of {size}")
    found, at = {"steps": np.frombuffer(content, np.uint32, 1)}, 4
    for one in held:
        found[one.name] = np.frombuffer(content, one.data.dtype, one.data.size, at).reshape(one.data.shape)
        at += one.bytes
    return found, size


def read_checkpoint(folder: Path, program: Program, identity: int) -> dict[str, np.ndarray]:
    """The fields of the newest complete checkpoint in a project's folder, as `unpacked` returns them.

    Args:
        identity: the project's PROJECT_IDENTITY.

    Raises:
        SmeltError: there is no complete checkpoint.
    """
    errors, best = [], None
    for name in ("trained.0", "trained.1"):
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            errors.append(f"{name} cannot be read: {error.strerror}")
            continue
        header = struct.unpack_from("<5I", content) if len(content) >= _HEADER else None
        if header is None or header[:2] != (0x544C4D53, 1):
            errors.append(f"{name} is no checkpoint of this version")
        elif header[2] != identity:
            errors.append(f"{name} is of another model")
        elif header[4] != trained_bytes(program) or not _whole(content, end := _HEADER + header[4]):
            errors.append(f"{name} is torn or damaged")
        elif best is None or 0 < (header[3] - best[0]) % (1 << 32) < 1 << 31:
            best = (header[3], content[_HEADER:end])
    if best is None:
        raise SmeltError(f"no checkpoint in {folder} can be read", why="; ".join(errors) or "nothing was saved")
    return unpacked(program, best[1])[0]


def _whole(content: bytes, end: int) -> bool:
    """Whether the checksum of the bytes before `end` is stored at `end`; in flash, further records may follow."""
    return len(content) >= end + 4 and zlib.crc32(content[:end]) == int.from_bytes(content[end : end + 4], "little")


_HEADER = 20
