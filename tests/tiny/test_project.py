"""Projects: built and run on every board with the bits of the simulation, checkpoints, and what is refused."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.base.errors import BuildError, SmeltError
from smelt.tiny.boards.board import Board, find_board
from smelt.tiny.boards.build import BudgetError, build
from smelt.tiny.boards.build import Program as Built
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from smelt.tiny.plan import lay_out
from smelt.tiny.program import StepOptions
from smelt.tiny.project import export as export_module
from smelt.tiny.project.commands import Answers, Commands, read_checkpoint, send
from smelt.tiny.project.export import Budget, Exported, export, largest_fitting_scheme
from smelt.tiny.project.memory_map import busiest, sizes_of
from smelt.tiny.ram import ram_of
from smelt.tiny.render_c import trained_bytes
from smelt.tiny.scheme import Scheme, memory, named
from smelt.tiny.simulate import Training, infer
from smelt.tiny.step import step_program
from tests.tiny import model_files as files
from tests.tiny.emulated import board_or_skip

SCHEME = Scheme("mine", 4, {3: Fraction(1, 2), 4: Fraction(1), 5: Fraction(1, 4)})


def network(folder: Path) -> Int8Graph:
    return with_head(load(files.write(folder)), 4)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-128, 128, (count, 9, 9, 3)).astype(np.int8)


def exported(graph: Int8Graph, folder: Path, board: Board, options: StepOptions | None = None) -> Exported:
    """A project that is linked once, by `compiled`: sizes and pictures have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "_linked", lambda *_: None)
        patch.setattr(export_module, "draw", lambda *_: None)
        return export(graph, SCHEME, folder, board, Budget(ram=64 << 10), options)


def compiled(made: Exported, board: Board) -> Built:
    sources = sorted(path.name for path in made.folder.glob("*.c"))
    return build(board, sources, made.folder, ("-Werror",))


def answers(built: Built, commands: Commands) -> Answers:
    return send(built, commands, limit_s=60)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mps2-an500", StepOptions()),
        ("mps2-an386", StepOptions("nearest", backward="int8")),
        ("rv32-virt", StepOptions("latent", momentum=0.5)),
        ("host", StepOptions(backward="int8")),
    ],
    ids=lambda one: one if isinstance(one, str) else f"{one.rounding}, {one.backward}",
)
def test_training_has_the_bits_of_the_simulation(name: str, options: StepOptions, tmp_path: Path) -> None:
    board, graph = board_or_skip(name), network(tmp_path)
    made = exported(graph, tmp_path / "out", board, options)
    commands, simulated, wanted = Commands(made.program), Training(made.program), []
    for step, image in enumerate(images(8)):
        commands.train(image, step % 4, 0.05)
        wanted.append((simulated.step(image, step % 4, 0.05), simulated.logits))
    commands.infer(images(1)[0])
    commands.dump()
    found = answers(compiled(made, board), commands)
    for (loss, logits), (wanted_loss, wanted_logits) in zip(found.values[:8], wanted, strict=True):  # type: ignore[misc]
        assert np.float32(loss) == wanted_loss
        assert (logits == wanted_logits.numpy()).all()
    state = {key: torch.as_tensor(value) for key, value in simulated.state.items()}
    after = infer(made.program_of_inference(), images(1), state)[0].numpy()
    kind, logits = found.values[8]  # type: ignore[misc]
    assert kind == after.argmax() and (logits == after).all()
    dumped = found.values[9]
    assert isinstance(dumped, dict) and dumped["steps"][0] == 8
    for key, value in state.items():
        assert (dumped[key] == value.numpy()).all(), key
    assert any((dumped[key] != one.data).any() for key, one in made.program.trained.items())
    if board.bare:
        assert 0 < found.stack <= 4096
        assert len(found.train_instructions) == 8 and min(found.train_instructions) > min(found.infer_instructions) > 0


@pytest.mark.parametrize("name", ["host", "rv32-virt"])
def test_a_torn_write_gives_the_older_record(name: str, tmp_path: Path) -> None:
    board = board_or_skip(name)
    made = exported(network(tmp_path), tmp_path / "out", board)
    built, (first, second) = compiled(made, board), images(2)
    commands = Commands(made.program)
    for image in (first, second):
        commands.train(image, 1, 0.1)
        commands.dump()
        commands.save()
    _, older, saved, _, newer, again = answers(built, commands).values
    assert (saved, again) == (0, 0) and isinstance(older, dict) and isinstance(newer, dict)
    assert any((older[key] != newer[key]).any() for key in older if key != "steps")
    later = made.folder / "trained.1"
    whole = later.read_bytes()

    def loaded() -> tuple[object, dict[str, np.ndarray]]:
        commands = Commands(made.program)
        commands.load()
        commands.dump()
        status, values = answers(built, commands).values
        assert isinstance(values, dict)
        return status, values

    def same(values: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
        return all((values[key] == wanted[key]).all() for key in wanted)

    status, values = loaded()
    assert status == 0 and same(values, newer)
    assert same(read_checkpoint(made.folder, made.program, made.identity), newer)
    later.write_bytes(whole + b"what else is in this sector")
    assert loaded()[0] == 0 and same(read_checkpoint(made.folder, made.program, made.identity), newer)
    flipped = bytes([*whole[:40], whole[40] ^ 4, *whole[41:]])
    for content in (b"", whole[:10], whole[:-1], whole[: len(whole) // 2], flipped):
        later.write_bytes(content)
        status, values = loaded()
        assert status == 0 and same(values, older)
        assert same(read_checkpoint(made.folder, made.program, made.identity), older)
    (made.folder / "trained.0").write_bytes(flipped[:50])
    status, values = loaded()
    assert status == 2 and values["steps"][0] == 0
    with pytest.raises(SmeltError, match="trained.0 is torn or damaged; trained.1 is torn or damaged"):
        read_checkpoint(made.folder, made.program, made.identity)
    commands = Commands(made.program)
    commands.save()
    assert answers(built, commands).values == [0]
    assert loaded()[0] == 0
    for slot in ("trained.0", "trained.1"):
        (made.folder / slot).unlink(missing_ok=True)
    assert loaded()[0] == 1


def test_any_damaged_byte_of_a_record_gives_the_older_one(tmp_path: Path) -> None:
    made = exported(network(tmp_path), tmp_path / "out", find_board("host"))
    data = bytes(trained_bytes(made.program))

    def record(sequence: int, **other: int) -> bytes:
        fields = {
            "magic": 0x544C4D53,
            "version": 1,
            "identity": made.identity,
            "sequence": sequence,
            "bytes": len(data),
        }
        content = struct.pack("<5I", *(fields | other).values()) + struct.pack("<I", sequence) + data[4:]
        return content + struct.pack("<I", zlib.crc32(content))

    def read(first: bytes, second: bytes) -> int:
        (made.folder / "trained.0").write_bytes(first)
        (made.folder / "trained.1").write_bytes(second)
        return int(read_checkpoint(made.folder, made.program, made.identity)["steps"][0])

    assert read(record(1), record(2)) == 2 and read(record(2), record(2)) == 2
    assert read(record(0xFFFF_FFFF), record(0)) == 0
    newer = record(2)
    for at in (*range(24), *range(24, len(newer) - 4, 97), *range(len(newer) - 4, len(newer))):
        assert read(record(1), newer[:at]) == 1
        assert read(record(1), bytes([*newer[:at], newer[at] ^ 0x80, *newer[at + 1 :]])) == 1
    for other in ({"version": 2}, {"identity": made.identity ^ 1}, {"bytes": 0}, {"bytes": len(data) - 4}):
        assert read(record(1), record(2, **other)) == 1
    (made.folder / "trained.1").unlink()
    (made.folder / "trained.1").mkdir()
    with pytest.raises(SmeltError, match="trained.0 is torn or damaged; trained.1 cannot be read"):
        (made.folder / "trained.0").write_bytes(newer[:-1])
        read_checkpoint(made.folder, made.program, made.identity)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    board = board_or_skip("host")
    graph = network(tmp_path)
    one = exported(graph, tmp_path / "one", board)
    other = exported(graph, tmp_path / "other", board, StepOptions("nearest"))
    assert one.identity != other.identity
    commands = Commands(one.program)
    commands.save()
    answers(compiled(one, board), commands)
    (other.folder / "trained.0").write_bytes((one.folder / "trained.0").read_bytes())
    commands = Commands(other.program)
    commands.load()
    assert answers(compiled(other, board), commands).values == [2]
    with pytest.raises(SmeltError, match="trained.0 is of another model"):
        read_checkpoint(other.folder, other.program, other.identity)


def test_an_error_over_budget_names_a_scheme_that_fits(tmp_path: Path) -> None:
    graph, full = network(tmp_path), named("full", network(tmp_path))
    needed = ram_of(graph, full, 1024)
    budget = Budget(ram=needed - 1, stack=1024)
    with pytest.raises(BudgetError, match=f"takes {needed:,} B of RAM, the budget is {needed - 1:,} B") as told:
        export(graph, full, tmp_path / "out", find_board("mps2-an500"), budget)
    fits = largest_fitting_scheme(graph, full, budget)
    assert fits is not None and str(fits) in str(told.value)
    assert ram_of(graph, fits, 1024) <= budget.ram and memory(graph, fits).total < memory(graph, full).total
    assert "in the arena during" in str(told.value)
    assert largest_fitting_scheme(graph, full, Budget(ram=1200, stack=1024)) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.json", "net.npz"]


def test_a_preset_that_fits_is_named(tmp_path: Path) -> None:
    graph = with_head(load(files.pretrained("mcunet-5fps")), 10)
    fits = largest_fitting_scheme(graph, named("mcunet-148kb", graph), Budget(ram=160 << 10))
    assert fits is not None and memory(graph, fits).total >= memory(graph, named("mcunet-49kb", graph)).total


def test_flash_over_budget_is_an_error_of_the_linker(tmp_path: Path) -> None:
    board = board_or_skip("mps2-an500")
    with pytest.raises(BudgetError, match="exceeds FLASH by"):
        export(network(tmp_path), SCHEME, tmp_path / "out", board, Budget(flash=4096))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.json", "net.npz"]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    out, board, graph = tmp_path / "out", find_board("host"), network(tmp_path)
    out.mkdir()
    (out / "mine.txt").write_text("")
    with pytest.raises(SmeltError, match="is not empty"):
        export(graph, SCHEME, out, board)
    with pytest.raises(SmeltError, match="there is no folder"):
        export(graph, SCHEME, tmp_path / "a" / "b", board)
    with pytest.raises(SmeltError, match="is no folder"):
        export(graph, SCHEME, tmp_path / "net.json", board)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def _descend(graph: Int8Graph, out: Path, act: Callable[[], object]) -> int:
    """The exit status of a child process that calls `act` while it draws the picture of an export."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export_module, "draw", lambda *_: act())
                export(graph, SCHEME, out, find_board("host"))
        except SmeltError as error:
            status = 7 if "cannot be written" in str(error) else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def test_an_interrupted_export_leaves_no_project_and_a_killed_one_is_cleared_later(tmp_path: Path) -> None:
    graph, out = network(tmp_path), tmp_path / "out"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "draw", stop)
        with pytest.raises(KeyboardInterrupt):
            export(graph, SCHEME, out, find_board("host"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.json", "net.npz"]
    assert _descend(graph, out, lambda: os.kill(os.getpid(), signal.SIGKILL)) == signal.SIGKILL
    (left,) = tmp_path.glob(".out.smelt-*")
    assert not out.exists()
    (mine := tmp_path / ".out.mine").mkdir()
    exported(graph, tmp_path / "one", find_board("host"))
    assert left.exists()  # another export's
    os.utime(left, (0, 0))
    exported(graph, out, find_board("host"))
    assert not left.exists() and mine.exists() and (out / "model.c").exists()


def test_files_that_cannot_be_written_whole_leave_nothing(tmp_path: Path) -> None:
    graph, out = network(tmp_path), tmp_path / "out"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # of files from here on: Makefile and README

    assert os.waitstatus_to_exitcode(_descend(graph, out, limited)) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.json", "net.npz"]
    with pytest.raises(SmeltError, match="cannot be written[^$]*name too long"):
        export(graph, SCHEME, tmp_path / ("x" * 300), find_board("host"))


def test_of_two_exports_at_once_one_is_written(tmp_path: Path) -> None:
    graph, out = network(tmp_path), tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "draw", lambda *_: exported(graph, out, find_board("host")))
        with pytest.raises(SmeltError, match="something else was written to"):
            export(graph, SCHEME, out, find_board("host"))
    assert (out / "model.c").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("#!/bin/sh\nexit 3\n", "it ended with status 3"),
        ("#!/bin/sh\nexit 0\n", "it ended with status 0"),
        ("#!/bin/sh\nkill -9 $$\n", "it ended with status -9"),
        ("#!/bin/sh\necho 'ld: final link failed: No space left on device' >&2; exit 1\n", "No space left on device"),
        ("no program", "cannot be run[^$]*Exec format error"),
    ],
)
def test_a_compiler_that_does_not_work_is_told(
    program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (compiler := tmp_path / "arm-none-eabi-gcc").write_text(program)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=told):
        export(network(tmp_path), SCHEME, tmp_path / "out", find_board("mps2-an500"))
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("label", "rate", "told"),
    [
        (4, 0.1, "label 4 is none of 4 classes"),
        (-1, 0.1, "label -1"),
        (0.5, 0.1, "label 0.5"),
        (0, float("nan"), "rate is nan"),
        (0, 1e39, "no finite float32"),
    ],
)
def test_labels_and_rates_of_steps_are_checked(label: int, rate: float, told: str, tmp_path: Path) -> None:
    graph = network(tmp_path)
    program = step_program(graph, SCHEME)
    for step in (Commands(program).train, Training(program).step):
        with pytest.raises(SmeltError, match=told):
            step(images(1)[0], label, rate)


def test_a_project_is_whole(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made = export(network(tmp_path), SCHEME, tmp_path / "out", find_board("generic-cortex-m7"))
    names = {path.name for path in made.folder.iterdir()}
    assert {"model.c", "model.h", "Makefile", "README.md", "memory.txt", "memory.png", "link.ld", "main.c"} <= names
    assert "checkpoint.c" in names and "program.elf" not in names
    assert (made.folder / "memory.png").read_bytes().startswith(b"\x89PNG")
    text = (made.folder / "memory.txt").read_text()
    layout = lay_out(made.program)
    assert made.linked == (shutil.which("arm-none-eabi-gcc") is not None) and (made.flash > 0) == made.linked
    assert f"arena {layout.size:,} B; {layout.least:,} B" in text
    assert all(name in text for name in layout.offsets)
    assert sum(size for _, size in busiest(made.program, layout)[1]) <= layout.size
    assert sizes_of(made.program, layout).keys() == layout.offsets.keys()


def test_without_a_compiler_a_project_is_written_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = export(network(tmp_path), SCHEME, tmp_path / "out", find_board("mps2-an500"))
    assert not made.linked
    with pytest.raises(BuildError, match="apt-get install gcc-arm-none-eabi"):
        compiled(made, find_board("mps2-an500"))


def test_an_unlinked_project_reports_that_flash_is_not_checked() -> None:
    board, scheme = find_board("generic-cortex-m7"), Scheme("classifier")
    made = export_module.Exported(Path("out"), None, 0, 2048, 0, linked=False)  # type: ignore[arg-type]
    assert "flash is not checked: arm-none-eabi-gcc is not installed" in export_module.describe(made, scheme, board)
    linked = export_module.Exported(Path("out"), None, 0, 2048, 4096, linked=True)  # type: ignore[arg-type]
    assert "4.0 KB of flash" in export_module.describe(linked, scheme, board)
    assert "not checked" not in export_module.describe(linked, scheme, board)
