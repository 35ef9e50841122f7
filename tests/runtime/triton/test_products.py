"""Choosing between a library's product and templates: what is timed on which memory, taken, remembered, dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import SmeltWarning
from smelt.base.stats import stats
from smelt.base.store import store
from smelt.runtime.cuda import driver as cuda_driver
from smelt.runtime.launch import Table
from smelt.runtime.triton import build as triton_build
from smelt.runtime.triton import products as triton_products
from smelt.runtime.triton import tune as triton_tune
from smelt.runtime.triton.kernels import Kernels
from smelt.runtime.tuned import KERNEL_TIMING
from tests.runtime.fake_cuda import FakeCuda
from tests.runtime.triton.test_tune import Compiler
from tests.runtime.triton_sources import ADD, add_kernel

LIBRARY = 7
"""Stands among the grids for a call of the library."""

TEMPLATE = tuple(Config((("XBLOCK", block),)) for block in (128, 256))
"""Grids of 32 and 16 programs for 4096 elements; the kernel after the library's call has one of 8."""

AFTER = (0, ((4096, "XBLOCK"),), ((1, 0), (2, 0), (3, 0), 4096))
WHOLE = (1, ((4096, "XBLOCK"),), ((1, 0), (2, 0), (3, 0), 4096))


class Library:
    """A product of no elements that counts its calls."""

    operation = "mm of this test"

    def __init__(self, fake: FakeCuda) -> None:
        self.fake, self.calls = fake, 0

    def into(self, out: torch.Tensor, *factors: torch.Tensor) -> None:
        self.calls += 1


class FakeClock:
    """Seconds of the launches and library calls of a run."""

    def __init__(self, fake: FakeCuda, library: Library, seconds: dict[int, float]) -> None:
        self.fake, self.library, self.seconds, self.is_recording = fake, library, seconds, False
        self.sizes: dict[int, int] = {}
        self.copies: list[torch.Tensor] = []
        self.timed = 0

    def recording(self) -> bool:
        return self.is_recording

    def time(self, run: Callable[[], object]) -> float:
        self.timed += 1
        before, calls = self.fake["launches"], self.library.calls
        run()
        grids = [one.grid[0] for one in self.fake.launched()[before:]] + [LIBRARY] * (self.library.calls - calls)
        return sum(self.seconds[grid] for grid in grids)

    def bytes_from(self, address: int) -> int | None:
        return self.sizes.get(address)

    def copy(self, address: int, size: int) -> tuple[int, Any]:
        self.copies.append(torch.zeros(size, dtype=torch.uint8))
        return self.copies[-1].data_ptr(), self.copies[-1]

    def name(self) -> str:
        return "a GPU of this test"


def forget() -> None:
    for module in (triton_build, triton_tune, triton_products):
        module.forget()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    cuda_driver._functions.clear()
    monkeypatch.setattr(triton_build, "pool", Compiler)
    made = FakeCuda(tmp_path)
    made["parameters"] = 4
    yield made
    forget()
    smelt.reset()


def table() -> Table:
    made = Table(4)
    for slot in range(4):
        made.set(slot, (slot + 1) << 20)
    return made


def source(name: str, configs: tuple[Config, ...], text: str = ADD) -> KernelSource:
    known = add_kernel()
    return KernelSource(text, known.signature, known.divisible, configs, name)


class Case:
    """A product with a kernel after it, or a template of two configurations."""

    def __init__(
        self,
        fake: FakeCuda,
        seconds: dict[int, float],
        configs: tuple[Config, ...] = TEMPLATE,
        after: str = ADD,
        measured: bool = True,
    ) -> None:
        self.fake, self.library = fake, Library(fake)
        self.clock = FakeClock(fake, self.library, seconds)
        sources = [source("after", (Config((("XBLOCK", 512),)),), after), source("whole", configs, after)]
        self.kernels = Kernels(sources, "cuda:0", fake.path, lambda _: 0, self.clock, measured)
        product = self.kernels.product(self.library, [], [AFTER], [([], WHOLE)])
        assert isinstance(product, triton_products.Product)
        self.product = product

    def __call__(self) -> tuple[list[int], int]:
        """Grids that one call launches, and its calls of the library, without those of timing."""
        before, calls = self.fake["launches"], self.library.calls
        self.product(table(), torch.empty(0), torch.empty(0), torch.empty(0))
        return [one.grid[0] for one in self.fake.launched()[before:]], self.library.calls - calls


def test_the_template_wins_where_it_is_faster(fake: FakeCuda) -> None:
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 2.5e-4, 16: 2e-4})
    case()
    assert case() == ([16], 0)
    assert stats()["product_choices"] == {"template": 1}


def test_the_library_wins_where_it_is_faster_or_equal(fake: FakeCuda) -> None:
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 4e-4, 16: 2.99e-4})
    case()
    assert case() == ([8], 1)
    assert stats()["product_choices"] == {"library": 1}


@pytest.mark.parametrize(("seconds", "expected"), [(1e-5, ([16], 0)), (1e-2, ([8], 1))])
def test_the_choice_is_remembered(fake: FakeCuda, seconds: float, expected: tuple[list[int], int]) -> None:
    times = {LIBRARY: 2e-4, 8: 1e-4, 32: 1.0, 16: seconds}
    Case(fake, times)()
    for again in (False, True):
        if again:
            forget()
        case = Case(fake, times)
        assert case() == expected and case.clock.timed == 0
        # nothing is built that is not run
        assert {key for key in case.kernels.builds if key[0] == 1} == ({(1, 1)} if expected[0] == [16] else set())


def test_a_remembered_template_that_no_longer_runs_leaves_the_library(fake: FakeCuda) -> None:
    times = {LIBRARY: 2e-4, 8: 1e-4, 32: 1.0, 16: 1e-5}
    known = Case(fake, times)
    known()
    forget()
    cuda_driver._functions.clear()
    case = Case(fake, times)
    case.product.implementations[0].build.reply = triton_build.Future()
    case.product.implementations[0].build.reply.set_result(({"error": "no"}, b""))
    assert case() == ([8], 1) and case.clock.timed == 0


def test_other_sizes_and_other_candidates_are_timed_anew(fake: FakeCuda) -> None:
    Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 1.0, 16: 1e-5})()
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 1e-5}, TEMPLATE[:1])
    case()
    assert case.clock.timed > 0 and case() == ([32], 0)


def test_templates_that_do_not_run_are_dropped_with_a_note(fake: FakeCuda) -> None:
    bad = (Config((("XBLOCK", 1),)), Config((("XBLOCK", 2),)))  # too much shared memory; refused by Triton
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 16: 1e-5}, (*bad, TEMPLATE[1]))
    case()
    assert case() == ([16], 0)
    text = store().get_text("triton-product", case.product.key)
    assert text is not None
    dropped = json.loads(text)["dropped"]
    assert len(dropped) == 2 and "shared memory" in dropped[0] and "refused" in dropped[1]
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4}, bad)
    case()
    assert case() == ([8], 1)


def test_a_launch_without_a_working_fallback_is_an_error(fake: FakeCuda) -> None:
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 1e-5, 16: 1e-5})
    fake["fail_at"] = 0
    fake.fail("LAUNCH", 701)
    with pytest.raises(RuntimeError, match="launching kernel .after.: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        case()
    assert store().get_text("triton-product", case.product.key) is None


def test_while_a_stream_is_recorded_the_library_works_and_the_choice_waits(fake: FakeCuda) -> None:
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 1.0, 16: 1e-5})
    case.clock.is_recording = True
    assert case() == ([8], 1) and case.clock.timed == 0
    case.clock.is_recording = False
    case()
    assert case() == ([16], 0)


def test_written_memory_is_copied_while_timing_and_the_winner_runs_once(fake: FakeCuda) -> None:
    in_place = ADD.replace("tl.store(out + i", "tl.store(a + i")
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 1.0, 16: 1e-5}, after=in_place)
    case.clock.sizes = {2 << 20: 4096 * 4}
    case()
    copies = {copy.data_ptr() for copy in case.clock.copies}
    *timed, last = fake.launched()
    assert {one.values[0] for one in timed} <= copies and last.values[0] == 2 << 20


def test_product_with_a_tensor_too_large_to_copy_uses_the_library(fake: FakeCuda) -> None:
    in_place = ADD.replace("tl.store(out + i", "tl.store(a + i")
    case = Case(fake, {}, after=in_place)
    case.clock.sizes = {2 << 20: KERNEL_TIMING.max_copied_bytes + 1}
    assert case() == ([8], 1)


def test_product_too_large_for_a_grid_uses_the_library(fake: FakeCuda) -> None:
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4})
    launch = (1, ((4096, "XBLOCK"), (1 << 20, None)), WHOLE[2])
    case.product = case.kernels.product(case.library, [], [AFTER], [([], launch)])  # type: ignore[assignment]
    case()
    assert case() == ([8], 1)


def test_templates_without_measuring(fake: FakeCuda) -> None:
    bad = Config((("XBLOCK", 1),))
    case = Case(fake, {}, (bad, *TEMPLATE), measured=False)
    assert case() == ([32], 0) and case.library.calls == 0
    case = Case(fake, {}, (bad,), measured=False)
    with pytest.warns(SmeltWarning, match="no template of mm of this test runs"):
        assert case() == ([8], 1)


def moved_table(*slots: int) -> Table:
    made = table()
    for slot in slots:
        made.set(slot, made.get(slot) + 2)
    return made


def test_factors_between_words_are_the_librarys(fake: FakeCuda) -> None:
    """The template is neither timed on such a call nor run; calls at multiples of 16 are as before."""
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4, 32: 2.5e-4, 16: 1e-5})
    given = [torch.empty(0)] * 3

    def called(where: Table) -> tuple[list[int], int]:
        before, calls = fake["launches"], case.library.calls
        case.product(where, *given)
        return [one.grid[0] for one in fake.launched()[before:]], case.library.calls - calls

    assert called(moved_table(1)) == ([8], 1) and case.clock.timed == 0
    case()
    assert called(table()) == ([16], 0)
    assert called(moved_table(1)) == called(moved_table(2, 3)) == ([8], 1)
    assert called(table()) == ([16], 0)


def test_templates_that_are_asked_for_run_between_words(fake: FakeCuda) -> None:
    case = Case(fake, {LIBRARY: 2e-4, 8: 1e-4}, measured=False)
    plain = case()
    before = fake["launches"]
    case.product(moved_table(1), *[torch.empty(0)] * 3)
    assert ([one.grid[0] for one in fake.launched()[before:]], case.library.calls) == plain
    assert fake.launched()[-1].function != fake.launched()[before - 1].function
