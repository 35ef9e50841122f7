"""Launches look at their pointers: which kernel runs where some begin between two words, through a driver that logs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.abi import device_checks
from smelt.abi.device_checks import DeviceChecks
from smelt.abi.faults import OUT_OF_RANGE, Check
from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import BuildError, SmeltWarning
from smelt.base.stats import reset_stats
from smelt.runtime import _native, refusals
from smelt.runtime.cuda import driver as cuda_driver
from smelt.runtime.launch import Table
from smelt.runtime.triton import build as triton_build
from smelt.runtime.triton import tune as triton_tune
from smelt.runtime.triton.align import aligned_pointers, pointers_of, unaligned_parameters
from smelt.runtime.triton.kernels import Kernels
from smelt.runtime.triton.plan import plan_launch
from smelt.runtime.triton.worker import Reply
from tests.runtime.fake_cuda import FakeCuda
from tests.runtime.triton_sources import ADD, add_kernel

MAX_VARIANTS = 16
"""Sets of pointers for which a segment has a plan of their own (native/cuda/cuda_segment.c)."""

LAUNCH = (0, ((1024, "XBLOCK"),), ((1, 0), (2, 0), (3, 0), 1024))


class Compiler:
    """Answers at once, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.refuse: set[tuple[str, ...]] = set()
        self.refuse_stages: dict[tuple[str, ...], int] = {}

    def submit(self, request: dict[str, Any]) -> Any:
        self.asked.append(request)
        head = {"entry": "e", "threads": 128, "appended": 0, "scratch": 0, "plain": True, "shared": 0}
        declared = tuple(request["divisible"])
        refused = declared in self.refuse or self.refuse_stages.get(declared) == request["num_stages"]
        answer: Reply = ({"error": "no"}, b"") if refused else (head, b"image")
        future: Any = triton_build.Future()
        future.set_result(answer)
        return future

    @property
    def declared(self) -> list[str]:
        """The pointers that each kernel was built for, as one text."""
        return [" ".join(request["divisible"]) for request in self.asked]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(triton_build, "pool", lambda: made)
    return made


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    for module in (triton_build, triton_tune):
        module.forget()
    cuda_driver._functions.clear()
    yield FakeCuda(tmp_path)
    for module in (triton_build, triton_tune):
        module.forget()


def table(*moved: int, by: int = 4, slots: int = 4) -> Table:
    """Slots at multiples of 2 ** 20; those in `moved` a few bytes further."""
    made = Table(slots)
    for slot in range(slots):
        made.set(slot, ((slot + 1) << 20) + (by if slot in moved else 0))
    return made


def kernels(fake: FakeCuda, *sources: KernelSource) -> Kernels:
    return Kernels(sources or [add_kernel()], "cuda:0", fake.path, lambda _: 0)


def functions(fake: FakeCuda) -> list[int]:
    return [one.function for one in fake.launched()]


def test_a_variant_for_what_is_moved(fake: FakeCuda, compiler: Compiler) -> None:
    run = kernels(fake).segment([LAUNCH])
    for moved in [(), (1,), (), (1,), (1, 3), (2,), (1, 2, 3), (0,)]:
        run(table(*moved))
    assert compiler.declared == ["a b out", "b out", "b", "a out", ""]
    first, one, again, also, two, other, all_three, unused = functions(fake)
    assert first == again == unused and one == also and len({first, one, two, other, all_three}) == 5


@pytest.mark.parametrize("by", [1, 2, 4, 8, 12, 15, 16, 48])
def test_only_multiples_of_16_are_declared(fake: FakeCuda, compiler: Compiler, by: int) -> None:
    kernels(fake).segment([LAUNCH])(table(2, by=by))
    assert compiler.declared == ["a b out", "a out"][: 1 + (by % 16 != 0)]


def test_offsets_inside_of_a_slot(fake: FakeCuda, compiler: Compiler) -> None:
    """Of an arena: offsets count, whether the slot begins with a word or makes up for it."""
    launch = (0, ((1024, "XBLOCK"),), ((0, 4), (0, 32), (0, 4100), 1024))
    run = kernels(fake).segment([launch])
    run(table())
    run(table(0, by=12))
    assert compiler.declared == ["a b out", "b", "a out"]
    assert pointers_of([plan_launch(add_kernel(), add_kernel().configs[0], *launch[1:])]) == ((0, 4), (0, 0))


def test_kernels_that_rely_on_nothing_have_no_variants(fake: FakeCuda, compiler: Compiler) -> None:
    other = dataclasses.replace(add_kernel(name="other"), divisible=("out",))
    run = kernels(fake, add_kernel(), other).segment([LAUNCH, (1, *LAUNCH[1:])])
    run(table())
    run(table(1))
    assert compiler.declared == ["a b out", "out", "b out"]
    first, other_first, second, other_second = functions(fake)
    assert first != second and other_first == other_second


def test_variants_are_shared_and_stored(fake: FakeCuda, compiler: Compiler) -> None:
    for _ in range(2):
        kernels(fake).segment([LAUNCH, (0, LAUNCH[1], ((3, 0), (2, 0), (1, 0), 1024))])(table(1))
    assert compiler.declared == ["a b out", "b out", "a b"]
    triton_build.forget()
    kernels(fake).segment([LAUNCH])(table(1))
    assert len(compiler.asked) == 3  # it was in the store


def test_other_segments_are_built_ahead(fake: FakeCuda, compiler: Compiler) -> None:
    """The first segment that meets a pointer between words begins the builds of those behind it."""
    made = kernels(fake, add_kernel(), add_kernel(512, name="second"), add_kernel(128, name="third"))
    runs = [made.segment([(number, LAUNCH[1], ((n, 0), (2, 0), (3, 0), 1024))]) for number, n in enumerate((1, 1, 0))]
    where = table(1)
    runs[0](where)
    assert compiler.declared == ["a b out"] * 3 + ["b out"] * 2
    assert [request["name"] for request in compiler.asked[3:]] == ["fused_add", "second"]
    for run in runs[1:]:
        run(where)
    assert len(compiler.asked) == 5


def test_many_sets_end_in_a_plan_for_all_of_them(fake: FakeCuda, compiler: Compiler) -> None:
    """What was in one of the sets is no longer relied on; what never was still is."""
    parts = 8
    launches = [(0, ((8, "XBLOCK"),), ((3 * n, 0), (3 * n + 1, 0), (3 * n + 2, 0), 8)) for n in range(parts)]
    run = kernels(fake).segment(launches)

    def called(number: int) -> tuple[int, ...]:
        run(table(*(bit for bit in range(3 * parts) if number >> bit & 1), slots=3 * parts))
        return tuple(functions(fake)[-parts:])

    plain = called(0)  # launch by launch, so that each can be refused
    exact = [called(number) for number in range(1, MAX_VARIANTS + 1)]
    union = called(MAX_VARIANTS + 1)  # of the bits 0 to 4
    assert union[2:] == plain[2:] and len({union[0], union[1], plain[0]}) == 3
    assert {called(number) for number in range(MAX_VARIANTS + 2, 32)} == {union}
    assert [called(number) for number in range(1, MAX_VARIANTS + 1)] == exact  # these have plans of their own
    built = len(compiler.asked)
    wider = called(1 << 3 | 1 << 20)
    assert wider != union and {called(1 << 20), called(31 | 1 << 20)} == {wider} and called(31) == union
    assert wider[0] == union[0] and wider[2:6] == plain[2:6]
    assert len(compiler.asked) == built  # another launch of this kernel has met it


def test_more_pointers_than_a_word_has_bits(fake: FakeCuda, compiler: Compiler) -> None:
    launches = [(0, ((8, "XBLOCK"),), ((3 * n, 0), (3 * n + 1, 0), (3 * n + 2, 0), 8)) for n in range(50)]
    run = kernels(fake).segment(launches)
    run(table(130, slots=150))
    run(table(131, slots=150))
    assert compiler.declared == ["a b out", "a out", "a b"]
    plain = functions(fake)[0]
    assert [n for n, function in enumerate(functions(fake)) if function != plain] == [43, 50 + 43]


def test_text_for_pointers_between_words(fake: FakeCuda, compiler: Compiler) -> None:
    source = dataclasses.replace(add_kernel(), unaligned=ADD + "# elsewhere\n")
    run = kernels(fake, source).segment([LAUNCH])
    run(table())
    run(table(3))
    assert [request["source"] for request in compiler.asked] == [ADD, source.unaligned]
    assert compiler.declared == ["a b out", "a b"]


class Other:
    """Stands in a kernel's place, and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[int], Sequence[int]]] = []

    def __call__(self, memory: Any, addresses: Sequence[int], numbers: Sequence[int]) -> None:
        self.calls.append((addresses, numbers))


def between(fake: FakeCuda, other: Other | None, config: Config | None = None) -> Any:
    """Three launches, of which the one in the middle has a fallback and another source than those around it."""
    source = add_kernel(name="middle", text=ADD + "# middle\n")
    source = source if config is None else dataclasses.replace(source, configs=(config,))
    made = Kernels([add_kernel(), source], "cuda:0", fake.path, lambda _: 0, fallbacks=[None, other])
    return made.segment([(0, *LAUNCH[1:]), (1, LAUNCH[1], ((3, 0), (2, 0), (1, 0), 1024)), (0, *LAUNCH[1:])])


@pytest.fixture(autouse=True)
def nothing_is_told(request: pytest.FixtureRequest) -> Iterator[None]:
    refusals._reported.clear()
    reset_stats()
    yield
    reset_stats()


def test_a_variant_that_is_refused_at_a_later_call(fake: FakeCuda, compiler: Compiler) -> None:
    """Its fallback runs for such pointers, between kernels; all others are served as before."""
    other = Other()
    run = between(fake, other)
    run(table())
    compiler.refuse.add(("a", "b"))  # of the middle, whose `out` is moved
    with pytest.warns(SmeltWarning, match="'middle' was refused .*operators run in its place"):
        run(table(1))
    assert other.calls == [([4 << 20, 3 << 20, (2 << 20) + 4], [1024])] and fake["launches"] == 3 + 2
    asked = len(compiler.asked)
    run(table(1))
    run(table())
    run(table(2))
    assert len(other.calls) == 2 and fake["launches"] == 5 + 2 + 3 + 3 and len(compiler.asked) == asked + 2
    (told,) = smelt.stats()["second_ways"].items()
    assert "middle" in told[0] and told[1] == 1


def test_each_set_of_pointers_has_its_own_refusals(fake: FakeCuda, compiler: Compiler) -> None:
    other = Other()
    run = between(fake, other)
    run(table(1))
    compiler.refuse.add(("b", "out"))  # of the middle, whose `a` is slot 3; that of the others is built already
    with pytest.warns(SmeltWarning, match="'middle'"):
        run(table(3))
    for _ in range(2):
        run(table(1))
        run(table(3))
    assert len(other.calls) == 3 and fake["launches"] == 3 + 2 + 2 * (3 + 2)


def test_a_simpler_configuration_of_a_variant(fake: FakeCuda, compiler: Compiler) -> None:
    other = Other()
    run = between(fake, other, Config((("XBLOCK", 1024),), num_stages=3))
    run(table())
    compiler.refuse_stages = {("a", "b"): 3}
    with pytest.warns(SmeltWarning, match="'middle' was refused .*num_stages=1"):
        run(table(1))
    run(table(1))
    assert not other.calls and fake["launches"] == 9


@pytest.mark.parametrize("code", [1, 701])
def test_a_launch_of_a_variant_that_is_refused(fake: FakeCuda, compiler: Compiler, code: int) -> None:
    other = Other()
    made = Kernels([add_kernel()], "cuda:0", fake.path, lambda _: 0, fallbacks=[other])
    run = made.segment([LAUNCH])
    run(table())
    fake.fail("LAUNCH", code)
    fake["fail_at"] = 1
    with pytest.warns(SmeltWarning, match="'fused_add' was refused"):
        run(table(1))
    fake["fail_at"] = -1
    run(table(1))
    run(table())
    assert len(other.calls) == 2 and fake["launches"] == 2


def test_a_refused_variant_without_a_fallback_is_an_error_each_time(fake: FakeCuda, compiler: Compiler) -> None:
    compiler.refuse.add(("b", "out"))
    run = kernels(fake).segment([LAUNCH])
    for _ in range(2):
        with pytest.raises(BuildError, match="refused kernel 'fused_add'"):
            run(table(1))
    run(table())
    assert fake["launches"] == 1


def test_memory_runs_out_for_a_variant(fake: FakeCuda, compiler: Compiler) -> None:
    run = kernels(fake).segment([LAUNCH])
    run(table())
    fake.fail("LOAD", 2)
    with pytest.raises(BuildError, match=r"(?s)memory ran out.*'fused_add'"):
        run(table(1))
    fake.fail("LOAD", 0)
    run(table(1))
    assert fake["launches"] == 2


def test_kernels_are_loaded_while_a_stream_is_recorded(fake: FakeCuda, compiler: Compiler) -> None:
    kernels(fake).segment([LAUNCH])(table())
    assert fake["loaded_in"] == 2 and fake["mode"] == 1  # relaxed, and as before


CONFIGS = tuple(Config((("XBLOCK", block),)) for block in (256, 512, 1024))


class Clock:
    """The last candidate is the fastest. Memory is that of the test."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake, self.pointers, self.copied = fake, set[int](), list[int]()

    def recording(self) -> bool:
        return False

    def time(self, run: Any) -> float:
        before = self.fake["launches"]
        run()
        launched = self.fake.launched()[before:]
        self.pointers |= {value for one in launched for value in one.values[:3]}
        return sum({4: 3e-4, 2: 2e-4, 1: 1e-4}[one.grid[0]] for one in launched)

    def bytes_from(self, address: int) -> int | None:
        return 64

    def copy(self, address: int, size: int) -> tuple[int, Any]:
        self.copied.append(address)
        return 9 << 20, None

    def name(self) -> str:
        return "a GPU of this test"


def test_candidates_are_timed_at_multiples_of_16(fake: FakeCuda, compiler: Compiler) -> None:
    """The first call's pointers are elsewhere: nothing relies on them, and the choice is the one of other calls."""
    fake["parameters"] = 4
    clock = Clock(fake)
    source = dataclasses.replace(add_kernel(), configs=CONFIGS)
    run = Kernels([source], "cuda:0", fake.path, lambda _: 0, clock).segment([LAUNCH])
    given = table(2)
    run(given)
    assert clock.copied == [given.get(2)] and all(pointer % 16 == 0 for pointer in clock.pointers)
    last = fake.launched()[-1]
    assert last.grid[0] == 1 and list(last.values[:3]) == [given.get(1), given.get(2), given.get(3)]
    assert compiler.declared == ["a b out"] * 3 + ["a out"]
    assert dict(compiler.asked[-1]["constants"]) == {"XBLOCK": 1024}
    before = fake["launches"]
    run(given)
    run(table())
    again, plain = fake.launched()[before:]
    assert again.function == last.function != plain.function and len(compiler.asked) == 4


def test_pointer_alignments_that_a_launch_relies_on() -> None:
    planned = plan_launch(add_kernel(), add_kernel().configs[0], ((8, "XBLOCK"),), ((1, 0), (0, 20), (1, 0), 8))
    assert aligned_pointers(planned) == {"a": (1, 0), "b": (0, 4), "out": (1, 0)}
    assert unaligned_parameters(table(1, by=8), planned) == ["a", "b", "out"]
    assert unaligned_parameters(table(0, by=12), planned) == []


def test_tensors_that_begin_with_words() -> None:
    data = torch.zeros(64)
    start = -data.data_ptr() // 4 % 4
    data = data[start:]
    assert _native.aligned() and _native.aligned(data, None, data[4:], data[1:].new_empty(0))
    assert not _native.aligned(data, data[1:]) and not _native.aligned(data[2:])
    with pytest.raises(TypeError):
        _native.aligned(data, 3)  # type: ignore[arg-type]


# -- errors inside of a kernel

PLAN = (("one", 7, (1, 1, 1), 32, 0, (), 0), ("two", 8, (1, 1, 1), 32, 0, (), 0))


@pytest.mark.parametrize("code", [700, 716, 719])
@pytest.mark.parametrize("blocking", ["0", "1"])
def test_an_error_inside_of_a_kernel(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, code: int, blocking: str) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    fake.fail("LAUNCH", code)
    fake["fail_at"] = 1
    run = _native.Segment(_native.Driver(fake.path), 0, lambda _: 0, lambda _: (PLAN, False))
    with pytest.raises(_native.CudaError, match="context is lost.*started anew") as caught:
        run(Table(0))
    assert caught.value.code == code
    text = str(caught.value)
    if blocking == "1":
        assert text.startswith("kernel 'two' failed on the GPU")
    else:
        assert re.search("when kernel 'two' was launched after it.*CUDA_LAUNCH_BLOCKING=1", text)


def test_an_error_of_a_kernel_that_reported_its_reason(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check, the operator and the user's line, whichever kernel is launched next."""
    checks = DeviceChecks(lambda words: torch.zeros(words, dtype=torch.int64))
    monkeypatch.setattr(device_checks, "_made", [checks])
    checks.reserve([("one", (Check(OUT_OF_RANGE, "gather", operator="gather", line="model.py:12"),))])
    checks.pages[0][0][:3] = torch.tensor([1, 7, 4])
    fake.fail("LAUNCH", 719)
    fake["fail_at"] = fake["launches"]
    run = _native.Segment(_native.Driver(fake.path), 0, lambda _: 0, lambda _: (PLAN, False))
    with pytest.raises(_native.CudaError) as caught:
        run(Table(0))
    text = str(caught.value)
    assert text.startswith("CUDA error: device-side assert triggered: model.py:12: index 7 is out of range")
    assert "(gather, in kernel 'one'); the CUDA context is lost" in text and caught.value.code == 719
    assert checks.reported
    fake.fail("LAUNCH", 1)
    fake["fail_at"] = fake["launches"]  # a refusal: the context is as it was
    with pytest.raises(_native.CudaError, match="^launching kernel"):
        run(Table(0))
