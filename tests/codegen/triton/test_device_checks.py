"""Checks of values in kernels for a GPU: they trap in a branch of their own, without barriers or narrower loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import smelt
from smelt import driver
from smelt.abi.faults import NO_PROBABILITY, OUT_OF_RANGE
from smelt.abi.rendered import Rendered
from smelt.schedule.plan import Schedule

pytest.importorskip("triton")

from tests.codegen.triton.machine_code import instructions

Lookup = Callable[..., torch.Tensor]
PLACES = torch.zeros(64, 128, dtype=torch.int64)


class Seen(Exception):
    """The programs are rendered; no GPU is there to run them."""


def rendered(monkeypatch: pytest.MonkeyPatch, fn: Lookup, *inputs: torch.Tensor, **options: object) -> list[Rendered]:
    """The programs of a function as they are for tensors of a GPU."""
    found: list[Rendered] = []
    render = driver.render_part

    def keep(*args: object, **more: object) -> Rendered:
        found.append(render(*args, **more))  # type: ignore[arg-type]
        return found[-1]

    def stop(*_: object, **more: object) -> None:
        raise Seen

    monkeypatch.setattr(Schedule, "on_gpu", True)
    monkeypatch.setattr(driver, "render_part", keep)
    monkeypatch.setattr(driver, "load", stop)
    with pytest.raises(Seen):
        smelt.compile(fn, options={"target": "triton"}, **options)(*inputs)
    return found


LOOKUPS: dict[str, tuple[Lookup, tuple[torch.Tensor, ...], bool]] = {
    "gather": (lambda x, i: torch.gather(x, 1, i) * 2, (torch.randn(64, 100), PLACES), False),
    "index_select": (lambda x, i: x.index_select(0, i[0]), (torch.randn(64, 96), PLACES), False),
    "embedding": (lambda w, i: F.embedding(i, w).sum(1), (torch.randn(99, 64), PLACES), False),
    "index": (lambda x, i: x[i] + 1, (torch.randn(100), PLACES), True),
    "index_put": (lambda x, i: x.index_put((i[0],), x[:1], accumulate=True), (torch.randn(64, 64), PLACES), True),
    "scatter": (lambda x, i: x.scatter(1, i, 1.0), (torch.randn(64, 100), PLACES), False),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i[0, :64]), (torch.randn(64, 100), PLACES), False),
    "softmax": (lambda x, i: torch.gather(x, 1, i).softmax(1), (torch.randn(64, 100), PLACES), False),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_kernel_on_a_gpu_traps(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fn, inputs, wraps = LOOKUPS[name]
    (program,) = rendered(monkeypatch, fn, *inputs)
    checks = [check for _, each in program.checks for check in each]
    assert {(c.fault, c.wraps) for c in checks} == {(OUT_OF_RANGE, wraps)}
    assert {c.line.split(":")[0] for c in checks} == {__file__}
    if name != "softmax":
        assert {c.operator for c in checks} == {{"index": "getitem"}.get(name, name)}
    assert "refuse(" not in program.host_source and ".fault" not in program.host_source
    kernels = [source for source in program.kernels if "m_refuse" in source.source]
    assert len(kernels) == len(program.checks) == 1
    found = instructions(kernels[0], tmp_path)
    assert "BPT.TRAP" in found and "MEMBAR.SC.SYS" in found
    without = kernels[0].source.replace("    m_refuse(", "    # m_refuse(")
    plain = instructions(type(kernels[0])(**{**vars(kernels[0]), "source": without, "unaligned": ""}), tmp_path)
    assert "BPT.TRAP" not in plain
    assert found.count("VOTE.ANY") == found.count("BPT.TRAP")
    for kind in ("LDG", "BAR", "LDS", "STS", "SHFL", "WARPSYNC", "BSSY", "LDL", "STL"):
        of_both = [Counter(n for n in names if n.startswith(kind)) for names in (found, plain)]
        assert of_both[0] == of_both[1], kind


def test_checks_of_a_kernel_that_reads_words_have_the_same_numbers_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.softmax(1) * w[i][:, None] * w[i + 1][:, None]

    (program,) = rendered(monkeypatch, fn, torch.randn(64, 1001), torch.randn(9), torch.zeros(64, dtype=torch.int64))
    checked = [source for source in program.kernels if "m_refuse" in source.source]
    (source,) = [source for source in checked if source.unaligned]
    assert source.unaligned and source.unaligned != source.source
    assert sum(len(checks) for _, checks in program.checks) == 2

    def numbered(text: str) -> list[tuple[str, str]]:
        """(the index, the number of the check)"""
        calls = (line.split(", ") for line in text.splitlines() if line.strip().startswith("m_refuse("))
        return sorted((parts[-2], parts[-3]) for parts in calls)

    assert numbered(source.unaligned) == numbered(source.source) != []


def test_launches_of_one_kernel_have_their_own_report_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.gather(x, 1, i).cumsum(0)
        return first, torch.gather(first, 1, j)

    (program,) = rendered(monkeypatch, fn, torch.randn(64, 128), PLACES, PLACES)
    assert [check.node for _, (check,) in program.checks] == ["gather", "gather_1"]
    lines = {check.line for _, (check,) in program.checks}
    assert len(lines) == 2
    slot = program.host_source.split("fault=")[1].split(",")[0]
    assert f"({slot}, 0)" in program.host_source and f"({slot}, 32)" in program.host_source


MANY = torch.zeros(1 << 16, dtype=torch.int64)
OF_SEVERAL_VALUES: dict[str, tuple[Lookup, tuple[torch.Tensor, ...], str]] = {
    "sum of elements": (
        lambda x, i: x.index_put((i,), torch.ones(128), accumulate=True) * 2,
        (torch.randn(99), PLACES[0]),
        "index_put",
    ),
    "narrow sum": (lambda x, i: x.index_add(0, i, x[:1].expand(128)), (torch.ones(9).half(), PLACES[0]), "index_add"),
    "sum in parts": (lambda x, i: x[i].sum(), (torch.randn(99), MANY), "getitem"),
    "variance in parts": (lambda w, i: F.embedding(i, w).var(0), (torch.randn(99, 8), MANY), "embedding"),
    "largest in parts": (lambda x, i: x[i].amax(), (torch.randn(99), MANY), "getitem"),
}


@pytest.mark.parametrize("name", OF_SEVERAL_VALUES)
def test_values_that_are_made_in_several_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kernel meets the index, the operator and its line are told."""
    fn, inputs, operator = OF_SEVERAL_VALUES[name]
    (program,) = rendered(monkeypatch, fn, *inputs)
    checks = [check for _, each in program.checks for check in each]
    assert checks and {check.line.split(":")[0] for check in checks} == {__file__}
    assert {check.operator for check in checks} == {operator}


def test_other_checks_of_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (program,) = rendered(monkeypatch, lambda x: torch.bernoulli(x), torch.rand(64, 64))
    ((_, (check,)),) = program.checks
    assert check.fault == NO_PROBABILITY and check.operator == "bernoulli"
    (kernel,) = [source for source in program.kernels if "m_refuse" in source.source]
    assert "BPT.TRAP" in instructions(kernel, tmp_path)


def test_changing_sizes_are_reported_by_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (program,) = rendered(monkeypatch, *LOOKUPS["gather"][:1], *LOOKUPS["gather"][1], dynamic=True)
    (kernel,) = [source for source in program.kernels if "m_refuse" in source.source]
    (line,) = [line for line in kernel.source.splitlines() if line.strip().startswith("m_refuse(")]
    assert not line.rstrip(")").split(", ")[-1].isdigit()
    assert "BPT.TRAP" in instructions(kernel, tmp_path)


def test_masked_elements_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beyond the end of a block, and where a condition around the lookup does not hold."""

    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return F.pad(torch.gather(x, 1, i), (3, 4))

    (program,) = rendered(monkeypatch, fn, torch.randn(5, 7), torch.zeros(5, 7, dtype=torch.int64))
    (kernel,) = [source for source in program.kernels if "m_refuse" in source.source]
    (line,) = [line for line in kernel.source.splitlines() if line.strip().startswith("m_refuse(")]
    assert "& xmask & m" in line


def test_an_interpreter_raises_as_on_a_cpu() -> None:
    run = smelt.compile(lambda x, i: torch.gather(x, 1, i) * 2, options={"target": "triton"})
    x, good = torch.randn(4, 5), torch.zeros(4, 5, dtype=torch.int64)
    assert run(x, good).shape == (4, 5)
    for bad in (5, -1, 2**40):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds|out of range"):
            run(x, torch.full_like(good, bad))
    assert run(x, good).equal(x[:, :1].expand(4, 5) * 2)
