"""Choosing among configurations: what is timed, on which memory, and what is remembered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import BuildError, CompileError
from smelt.runtime.cuda import clock as cuda_clock
from smelt.runtime.cuda import driver as cuda_driver
from smelt.runtime.launch import Table
from smelt.runtime.triton import build as triton_build
from smelt.runtime.triton import tune as triton_tune
from smelt.runtime.triton.kernels import Kernels
from smelt.runtime.triton.worker import Reply
from smelt.runtime.tuned import KERNEL_TIMING
from tests.runtime.fake_cuda import FakeCuda
from tests.runtime.triton_sources import ADD, add_kernel

CONFIGS = tuple(Config((("XBLOCK", block),)) for block in (256, 512, 1024))
IN_PLACE = ADD.replace("tl.store(out + i", "tl.store(a + i")


class FakeClock:
    """Seconds of a launch by its grid; the memory of CPU tensors as that of a device."""

    def __init__(self, fake: FakeCuda, seconds: dict[int, float]) -> None:
        self.fake, self.seconds, self.is_recording = fake, seconds, False
        self.timed: list[int] = []
        self.sizes: dict[int, int] = {}
        self.copies: list[torch.Tensor] = []

    def recording(self) -> bool:
        return self.is_recording

    def time(self, run: Callable[[], object]) -> float:
        before = self.fake["launches"]
        run()
        launched = self.fake.launched()[before:]
        self.timed.append(launched[0].grid[0])
        return sum(self.seconds[one.grid[0]] for one in launched)

    def bytes_from(self, address: int) -> int | None:
        return self.sizes.get(address)

    def copy(self, address: int, size: int) -> tuple[int, Any]:
        self.copies.append(torch.zeros(size, dtype=torch.uint8))
        return self.copies[-1].data_ptr(), self.copies[-1]

    def name(self) -> str:
        return "a GPU of this test"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    for module in (triton_build, triton_tune):
        module.forget()
    cuda_driver._functions.clear()
    monkeypatch.setattr(triton_build, "pool", Compiler)
    made = FakeCuda(tmp_path)
    made["parameters"] = 4
    yield made
    for module in (triton_build, triton_tune):
        module.forget()


class Compiler:
    """Answers at once. One block size is refused, one needs more shared memory than there is."""

    def submit(self, request: dict[str, Any]) -> Any:
        block = dict(request["constants"])["XBLOCK"]
        head = {"entry": "e", "threads": 128, "appended": 0, "scratch": 0, "plain": True}
        head["shared"] = 1 << 30 if block == 1 else 0
        answer: Reply = ({"error": "no"}, b"") if block == 2 else (head, b"image")
        future: Any = triton_build.Future()
        future.set_result(answer)
        return future


def source(*configs: Config, text: str = ADD) -> KernelSource:
    return dataclasses.replace(add_kernel(), configs=configs or CONFIGS, source=text)


def table() -> Table:
    made = Table(4)
    for slot in range(4):
        made.set(slot, (slot + 1) << 20)
    return made


LAUNCH = (0, ((4096, "XBLOCK"),), ((1, 0), (2, 0), (3, 0), 4096))


def kernels(fake: FakeCuda, clock: FakeClock, *sources: KernelSource) -> Kernels:
    return Kernels(sources, "cuda:0", fake.path, lambda _: 0, clock)


def test_the_fastest_wins(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    run = kernels(fake, clock, source()).segment([LAUNCH])
    run(table())
    assert fake.launched()[-1].grid[0] == 8  # the call itself
    assert clock.timed.count(16) == clock.timed.count(4) == 2  # once to count, once to see that it is far behind
    assert clock.timed.count(8) == 1 + KERNEL_TIMING.rounds
    before = fake["launches"]
    run(table())
    assert [one.grid[0] for one in fake.launched()[before:]] == [8]


def test_equal_ones_leave_the_first(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 1.01e-4, 8: 1e-4, 4: 1.001e-4})
    run = kernels(fake, clock, source()).segment([LAUNCH])
    run(table())
    assert fake.launched()[-1].grid[0] == 16


def test_the_winner_is_remembered(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    kernels(fake, clock, source()).segment([LAUNCH, LAUNCH])(table())
    timed = len(clock.timed)
    assert timed == 8  # the second launch is known by then
    for forget in (False, True):
        if forget:
            triton_tune.forget()
        again = kernels(fake, clock, source())
        run = again.segment([LAUNCH])
        assert list(again.builds) == [(0, 1)]  # the others are not even built
        before = fake["launches"]
        run(table())
        assert len(clock.timed) == timed and fake["launches"] == before + 1
    other = (0, ((8192, "XBLOCK"),), ((1, 0), (2, 0), (3, 0), 8192))
    clock.seconds = {32: 1e-4, 16: 2e-4, 8: 3e-4}
    kernels(fake, clock, source()).segment([other])(table())
    assert len(clock.timed) > timed and fake.launched()[-1].grid[0] == 32  # other sizes, another winner


def test_a_winner_that_is_known_is_the_only_candidate(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    first = kernels(fake, clock, source())
    assert first.target is not None
    plans = [triton_tune.choose(first.target, first.choice(LAUNCH), table()) for _ in range(2)]
    assert plans[0][2] == plans[1][2] and plans[0][2][0] == 8  # grids
    assert len(first.choice(LAUNCH).launches) == 1


def test_short_kernels_are_launched_many_times(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 1e-6, 8: 1e-2, 4: 1e-4})
    kernels(fake, clock, source()).segment([LAUNCH])(table())
    grids = [one.grid[0] for one in fake.launched()]
    # each twice alone, then in three rounds, or one where it is far behind; then the call
    assert grids.count(16) == 2 + 3 * KERNEL_TIMING.max_launches + 1
    assert grids.count(8) == 2 + 1 and grids.count(4) == 2 + 5


def test_candidates_that_do_not_fit_are_dropped(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 4096: 1e-5, 2048: 1e-5})
    configs = (Config((("XBLOCK", 1),)), Config((("XBLOCK", 2),)), CONFIGS[0])
    kernels(fake, clock, source(*configs)).segment([LAUNCH])(table())
    assert {one.grid[0] for one in fake.launched()} == {16}
    with pytest.raises(
        CompileError, match=r"(?s)no configuration of kernel 'fused_add'.*shared memory.*refused kernel"
    ):
        kernels(fake, clock, source(*configs[:2])).segment([LAUNCH])(table())
    with pytest.raises(BuildError, match="refused kernel 'fused_add'"):
        kernels(fake, clock, source(configs[1])).segment([LAUNCH])(table())


def test_candidates_that_the_driver_refuses_are_dropped(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    fake["fail_at"] = 0
    fake.fail("LAUNCH", 701)
    with pytest.raises(CompileError, match="no configuration of kernel 'fused_add' could be launched"):
        kernels(fake, clock, source()).segment([LAUNCH])(table())
    fake.fail("LAUNCH", 700)  # an illegal address is no matter of resources
    with pytest.raises(RuntimeError, match="CUDA_ERROR_FAKE"):
        kernels(fake, clock, source()).segment([LAUNCH])(table())


def test_tensor_changed_in_place_is_copied_for_timing(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    clock.sizes = {2 << 20: 4096 * 4}
    kernels(fake, clock, source(text=IN_PLACE)).segment([LAUNCH])(table())
    (copy,) = clock.copies
    *timed, last = fake.launched()
    assert {one.values[0] for one in timed} == {copy.data_ptr()}
    assert [list(one.values[1:4]) for one in timed] == [[3 << 20, 4 << 20, 4096]] * len(timed)
    assert last.values[0] == 2 << 20  # the call itself, once


def test_a_timed_kernel_that_checks_values_has_no_report_memory(fake: FakeCuda) -> None:
    """So it does not trap on what it finds while it is timed; the launch of the program does."""
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    text = ADD.replace("tl.store(out + i", "m_refuse(b, x < 0, 1, i, n)\n    tl.store(out + i")
    text += "\n\n@triton.jit\ndef m_refuse(words, wrong, number, value, size):\n    pass\n"
    run = kernels(fake, clock, source(text=text)).segment([LAUNCH])
    given = table()
    run(given)
    told = [launch.values[1] for launch in fake.launched()]
    assert set(told[:-1]) == {0} and told[-1] == given.get(2) != 0 and not clock.copies


def test_one_buffer_under_two_names_is_copied_once(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    clock.sizes = {2 << 20: 4096 * 4}
    launch = (0, ((4096, "XBLOCK"),), ((1, 0), (2, 0), (1, 0), 4096))
    kernels(fake, clock, source()).segment([launch])(table())
    (copy,) = clock.copies
    assert {(one.values[0], one.values[2]) for one in fake.launched()[:-1]} == {(copy.data_ptr(),) * 2}


@pytest.mark.parametrize("size", [None, KERNEL_TIMING.max_copied_bytes + 1])
def test_kernel_with_tensors_that_cannot_be_copied_is_not_timed(fake: FakeCuda, size: int | None) -> None:
    clock = FakeClock(fake, {})
    clock.sizes = {} if size is None else {2 << 20: size}
    kernels(fake, clock, source(text=IN_PLACE)).segment([LAUNCH])(table())
    assert [one.grid[0] for one in fake.launched()] == [16]


def test_nothing_is_timed_in_a_recording(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {})
    clock.is_recording = True
    kernels(fake, clock, source()).segment([LAUNCH])(table())
    assert [one.grid[0] for one in fake.launched()] == [16]


def test_kernels_before_run_before(fake: FakeCuda) -> None:
    clock = FakeClock(fake, {16: 3e-4, 8: 1e-4, 4: 2e-4})
    single = dataclasses.replace(add_kernel(32), source=ADD + "\n")
    first = (1, ((64, "XBLOCK"),), ((1, 0), (2, 0), (3, 0), 64))
    kernels(fake, clock, source(), single).segment([first, LAUNCH, first])(table())
    grids = [one.grid[0] for one in fake.launched()]
    assert grids[0] == grids[-1] == 2 and grids.count(2) == 2


def test_the_end_of_a_block(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda) -> None:
    segments = [
        {"device": 1, "address": 1000, "total_size": 500, "blocks": [{"size": 500}]},
        {"device": 0, "address": 1000, "total_size": 500, "blocks": [{"size": 100}, {"size": 300}, {"size": 100}]},
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    clock = cuda_clock.CudaClock(cuda_driver.open_driver(fake.path), 0, lambda _: 0)
    assert [clock.bytes_from(at) for at in (1000, 1099, 1100, 1350, 1499, 1500, 999)] == [
        100,
        1,
        300,
        50,
        1,
        None,
        None,
    ]


def test_memory_is_copied_by_the_driver(fake: FakeCuda) -> None:
    here, there = torch.arange(10), torch.zeros(10, dtype=torch.int64)
    cuda_driver.open_driver(fake.path).copy(0, there.data_ptr(), here.data_ptr(), 64, 0)
    assert there.tolist() == [*range(8), 0, 0]
