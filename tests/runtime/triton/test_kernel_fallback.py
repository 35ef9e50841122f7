"""Kernels that are refused at their build, load or launch: something else gives the same, told once and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.abi.kernel_source import Config
from smelt.base.errors import BuildError, SmeltWarning
from smelt.base.stats import reset_stats
from smelt.runtime import refusals
from smelt.runtime.cuda import driver as cuda_driver
from smelt.runtime.launch import Table
from smelt.runtime.library.externs import Candidate, ExternKernel, Spec
from smelt.runtime.triton import kernels as triton_kernels
from smelt.runtime.triton.kernel_fallback import fallback_step, simpler_configs
from smelt.runtime.triton.kernels import Kernels
from tests.runtime.fake_cuda import FakeCuda
from tests.runtime.test_triton_gpu import matmul
from tests.runtime.triton_sources import add_kernel, rows_kernel

pytest.importorskip("triton")

BAD = add_kernel(text=add_kernel().source.replace("tl.load(a + i", "tl.load(missing + i"))
ADDED = (0, ((1000, "XBLOCK"),), ((1, 0), (2, 64), (0, 4096), 1000))
ROWS = (1, ((10, "XBLOCK"), (3, None)), ((0, 4096), (3, 0), 10, 100))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    cuda_driver._functions.clear()
    refusals._reported.clear()
    reset_stats()
    yield
    reset_stats()


@pytest.fixture
def fake(tmp_path: Path) -> FakeCuda:
    return FakeCuda(tmp_path)


def table() -> Table:
    made = Table(4)
    for slot in range(4):
        made.set(slot, (slot + 1) << 20)
    return made


class Other:
    """Stands in a kernel's place, and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[int], Sequence[int]]] = []

    def __call__(self, memory: Any, addresses: Sequence[int], numbers: Sequence[int]) -> None:
        self.calls.append((addresses, numbers))


def segment(fake: FakeCuda, first: Any, second: Other) -> Callable[[Table], object]:
    kernels = Kernels([first, rows_kernel(4, 128)], "cuda:0", fake.path, lambda _: 0, fallbacks=[second, None])
    return kernels.segment([ADDED, ROWS, ADDED])


WANTED = ([2 << 20, (3 << 20) + 64, (1 << 20) + 4096], [1000])


def test_a_build_that_is_refused(fake: FakeCuda):
    """Between others, in the first call and in the next; the warning comes once, with the kernel's name."""
    other = Other()
    run = segment(fake, BAD, other)
    with pytest.warns(SmeltWarning, match=r"'fused_add' was refused \(Triton refused"):
        run(table())
    run(table())
    assert other.calls == [WANTED] * 4 and fake["launches"] == 2
    (told,) = smelt.stats()["second_ways"]
    assert "fused_add" in told and "operators" in told


def test_a_load_that_is_refused(fake: FakeCuda):
    other = Other()
    fake["threads"] = 96  # too many registers for the 128 threads of the first kernel
    run = Kernels([add_kernel()], "cuda:0", fake.path, lambda _: 0, fallbacks=[other]).segment([ADDED])
    with pytest.warns(SmeltWarning, match="'fused_add' was refused .*registers"):
        run(table())
    assert other.calls == [WANTED] and fake["launches"] == 0


@pytest.mark.parametrize("code", [1, 701])
def test_a_launch_that_is_refused(fake: FakeCuda, code: int):
    other = Other()
    run = Kernels([add_kernel()], "cuda:0", fake.path, lambda _: 0, fallbacks=[other]).segment([ADDED])
    fake.fail("LAUNCH", code)
    fake["fail_at"] = 0
    with pytest.warns(SmeltWarning, match="'fused_add' was refused"):
        run(table())
    fake["fail_at"] = -1
    run(table())
    assert other.calls == [WANTED] * 2


def test_a_simpler_configuration_comes_first(fake: FakeCuda):
    other = Other()
    fake["shared"] = 100 << 10
    run = Kernels([matmul(4)], "cuda:0", fake.path, lambda _: 0, fallbacks=[other]).segment(
        [(0, ((1, None),), ((0, 0), (1, 0), (2, 0), 512))]
    )
    with pytest.warns(SmeltWarning, match="'matmul' was refused .*num_stages=1"):
        run(table())
    run(table())
    assert not other.calls and fake["launches"] == 2


def test_memory_that_runs_out_is_no_refusal(fake: FakeCuda):
    fake.fail("LOAD", 2)
    run = Kernels([add_kernel()], "cuda:0", fake.path, lambda _: 0, fallbacks=[Other()]).segment([ADDED])
    with pytest.raises(BuildError, match="memory ran out"):
        run(table())


def test_other_errors_of_a_launch_are_raised(fake: FakeCuda):
    fake.fail("LAUNCH", 719)
    fake["fail_at"] = 0
    run = Kernels([add_kernel()], "cuda:0", fake.path, lambda _: 0, fallbacks=[Other()]).segment([ADDED])
    with pytest.raises(RuntimeError, match="fused_add"):
        run(table())


def test_simpler_configurations_keep_whole_rows():
    config = Config((("XBLOCK", 16), ("RBLOCK", 256)), 8, 3)
    assert [dict(c.constants) | {"stages": c.num_stages} for c in simpler_configs(config)] == [
        {"XBLOCK": 16, "RBLOCK": 256, "stages": 1},
        {"XBLOCK": 4, "RBLOCK": 256, "stages": 1},
        {"XBLOCK": 1, "RBLOCK": 256, "stages": 1},
    ]


# -- what stands in a kernel's place


@pytest.fixture
def all_refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No kernel runs; the names of those that would have."""
    names: list[str] = []

    def segment(self: Kernels, launches: Any) -> Callable[[Table], None]:
        steps = []
        for launch in triton_kernels._launched(launches):
            second = self.fallbacks[launch[0]]
            assert second is not None
            steps.append(fallback_step(second, launch[2], self.device))
            names.append(self.sources[launch[0]].name)

        def run(table: Table) -> None:
            for step in steps:
                step(table)

        return run

    monkeypatch.setattr(Kernels, "segment", segment)
    return names


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, w) * 2


def lookup(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    places = (x[:, :4].abs() * 3).long() % x.shape[0]
    return F.embedding(places, x).sum(1) + w


def narrow(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    places = (x.abs() * 3).long() % 5
    return torch.zeros(5, x.shape[1]).scatter_add(0, places, x) * w


def several(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), x.t().contiguous() * 2, x.flip(1).cumsum(1) + w, F.pad(x, (1, 2)).amax(1), (x > 0).any(0)


def in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:] += w[1:]
    y[0] *= 3
    return y.softmax(-1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [norm, lookup, narrow, several, in_place])
def test_operators_give_what_kernels_give(all_refused: list[str], fn: Any, dynamic: bool):
    """Forward and backward, in two calls, the second of another size."""
    run = smelt.compile(fn, options={"target": "triton"}, dynamic=dynamic)
    for rows in (6, 9):
        given = []
        for call in (fn, run):
            torch.manual_seed(rows)
            x, w = torch.randn(rows, 24, requires_grad=True), torch.randn(24, requires_grad=True)
            out = call(x, w)
            outs = out if isinstance(out, tuple) else (out,)
            sum(o.float().pow(2).sum() for o in outs if o.requires_grad).backward()
            given.append([*outs, x.grad, w.grad])
        torch.testing.assert_close(given[1], given[0])
    assert len(all_refused) >= 2


def test_long_sums_that_are_split_into_chunks(all_refused: list[str]):
    run = smelt.compile(lambda x: (x.sum(), x.amax(0)), options={"target": "triton"})
    x = torch.randn(100_003, 2)
    torch.testing.assert_close(run(x), (x.sum(), x.amax(0)), rtol=1e-4, atol=1e-3)
    assert len(all_refused) >= 2


def draws() -> tuple[torch.Tensor, ...]:
    run = smelt.compile(lambda x: (F.dropout(x), F.dropout(x * 2), torch.rand(4, 6)), options={"target": "triton"})
    torch.manual_seed(3)
    return run(torch.ones(4, 6))


def test_the_same_random_numbers(request: pytest.FixtureRequest):
    by_kernels = draws()
    names = request.getfixturevalue("all_refused")
    torch.testing.assert_close(draws(), by_kernels, rtol=0, atol=0)
    assert names


# -- calls of libraries


def misaligned(*_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("query is not correctly aligned (strideM)")


def bound(call: Callable[..., Any]) -> ExternKernel:
    kernel = ExternKernel("product of a test", [Candidate("library", call)], [Spec.in_rows((2, 3), torch.float32)], "")
    kernel.reference = Candidate("reference", lambda x: x * 2)
    return kernel


def test_a_library_takes_copies():
    def picky(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_contiguous() else misaligned()

    kernel = bound(picky)
    x = torch.randn(3, 2).t()
    with pytest.warns(SmeltWarning, match=r"a call of product of a test was refused \(query is not"):
        assert torch.equal(kernel.call(x), x * 2)
    assert torch.equal(kernel.call(x), x * 2) and kernel.chosen == "library on copies"


@pytest.mark.parametrize("form", ["call", "into"])
def test_the_reference_is_the_last_fallback(form: str):
    kernel, x, out = bound(misaligned), torch.randn(2, 3), torch.empty(2, 3)
    for _ in range(2):
        if form == "into":
            with pytest.warns(SmeltWarning) if kernel.chosen is None else nullcontext():
                kernel.into(out, x)
            assert torch.equal(out, x * 2)
        else:
            with pytest.warns(SmeltWarning) if kernel.chosen is None else nullcontext():
                assert torch.equal(kernel.call(x), x * 2)
    assert kernel.chosen == "reference"


@pytest.mark.parametrize("error", [torch.linalg.LinAlgError("singular"), torch.OutOfMemoryError("CUDA out of memory")])
def test_errors_of_values_and_of_memory_are_no_refusals(error: RuntimeError):
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)):
        bound(failing).call(torch.randn(2, 3))
