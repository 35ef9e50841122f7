"""smelt/runtime/observed.py: kernels under the user's lines while a profiler is on, and nothing afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import smelt
from smelt.abi import steps
from smelt.base.report import collecting_facts
from smelt.runtime import observed

HERE = "test_observed.py"


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.relu(x @ w + 1)  # line: relu
    y = torch.roll(y, 1, 0)
    return (F.layer_norm(y, (y.shape[-1],)) * y.sigmoid()).softmax(-1)


RELU = layer.__code__.co_firstlineno + 1


def step(fn: Callable[..., torch.Tensor], rows: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 16, generator=generator)
    w = torch.randn(16, 16, generator=generator).requires_grad_()
    out = fn(x, w)
    out.pow(2).sum().backward()
    assert w.grad is not None
    return [out.detach(), w.grad]


def shown(work: Callable[[], Any]) -> tuple[dict[str, int], Any]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        result = work()
    rows = {row.key: row.count for row in found.key_averages() if row.key.startswith("smelt: ")}
    return rows, result


OPTIONS = [{}, {"target": "triton"}]


@pytest.mark.parametrize("options", OPTIONS, ids=["cpp", "triton"])
@pytest.mark.parametrize("sizes", [(4,), (4, 5, 6)], ids=["static", "symbolic"])
def test_kernels_have_the_users_lines(options: dict[str, Any], sizes: tuple[int, ...]) -> None:
    compiled = smelt.compile(layer, options=options)
    before = [step(compiled, n) for n in (*sizes, *sizes)][-len(sizes) :]
    rows, during = shown(lambda: [step(compiled, n) for n in sizes])
    assert any(f"{HERE}:{RELU} " in row and "relu" in row for row in rows), rows
    assert rows[f"smelt: {HERE}:{RELU} matmul"] == len(sizes)
    assert any(row.startswith(f"smelt: {HERE}:{RELU} matmul backward") for row in rows)
    assert rows["smelt: layer"] == len(sizes)
    after = [step(compiled, n) for n in sizes]
    for one, two, three in zip(before, during, after, strict=True):
        assert all(map(torch.equal, one, two)) and all(map(torch.equal, two, three))
    with pytest.MonkeyPatch.context() as patched:  # those calls have put everything back
        patched.setattr(observed.Observed, "is_observed", lambda *_: pytest.fail("observed"))
        for n in sizes:
            step(compiled, n)
    again, _ = shown(lambda: [step(compiled, n) for n in sizes])
    assert again == rows


def test_without_a_profiler_no_ranges_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smelt.compile(layer)
    step(compiled, 4)
    monkeypatch.setattr(observed.Observed, "run", lambda *_: pytest.fail("observed"))
    monkeypatch.setattr(observed.Observed, "is_observed", lambda *_: pytest.fail("asked"))
    step(compiled, 4)


def test_a_program_that_is_compiled_under_a_profiler_is_shown_at_once() -> None:
    compiled = smelt.compile(layer)
    rows, _ = shown(lambda: step(compiled, 4))
    assert any(f"{HERE}:{RELU} " in row for row in rows)


def test_layers_of_torch_are_named_by_the_line_that_calls_them() -> None:
    linear = torch.nn.Linear(8, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        return linear(x).relu()

    line = model.__code__.co_firstlineno + 1
    compiled = smelt.compile(model)
    x = torch.randn(4, 8)
    compiled(x)
    rows, _ = shown(lambda: compiled(x))
    assert any(f"{HERE}:{line} linear" in row for row in rows) and not any("linear.py" in row for row in rows), rows


def test_regions_of_the_program_stay() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("mine"):
            return (x * 2).sin()

    compiled = smelt.compile(fn)
    compiled(torch.ones(3))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        compiled(torch.ones(3))
    names = [event.name for event in found.events() or ()]
    kernel = next(name for name in names if "sin" in name and name.startswith("smelt: "))
    assert names.index("mine") < names.index(kernel)


def test_errors_inside_are_the_same() -> None:
    def fn(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return table[i] * 2

    compiled = smelt.compile(fn)
    compiled(torch.ones(4), torch.tensor([1]))
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(IndexError):
        compiled(torch.ones(4), torch.tensor([9]))
    assert torch.equal(compiled(torch.ones(4), torch.tensor([1])), torch.tensor([2.0]))


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A CUDA that notes ranges."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: told.append(name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("end"))
    monkeypatch.setenv("SMELT_NVTX", "1")
    yield told


@pytest.mark.parametrize("options", OPTIONS, ids=["cpp", "triton"])
def test_nvtx_ranges(ranges: list[str], options: dict[str, Any]) -> None:
    compiled = smelt.compile(layer, options=options)
    step(compiled, 4)
    ranges.clear()
    step(compiled, 4)
    assert f"smelt: {HERE}:{RELU} matmul" in ranges and len(ranges) > 4
    assert ranges[1::2] == ["end"] * (len(ranges) // 2)
    assert not any(name == "end" for name in ranges[::2])


def test_nvtx_without_cuda_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(torch.cuda.nvtx, "range_push", missing)
    monkeypatch.setenv("SMELT_NVTX", "1")
    compiled = smelt.compile(layer)
    step(compiled, 4)
    monkeypatch.setattr(observed.Observed, "is_observed", lambda *_: pytest.fail("observed"))
    step(compiled, 4)


@pytest.mark.parametrize("options", OPTIONS, ids=["cpp", "triton"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_steps_and_whole_calls_are_timed_in_turn_for_who_asks(options: dict[str, Any], dynamic: bool) -> None:
    before = [*steps._programs]

    def made() -> list[Any]:
        return [program for program in steps._programs if program not in before]

    def timed() -> list[Any]:
        return [each for program in made() for each in program.steps.all() if each.timing is not None]

    compiled = smelt.compile(layer, dynamic=dynamic, options=options)
    expected = step(compiled, 4)
    assert not timed() and all(program.steps.timing is None for program in made())
    smelt.reset()
    with collecting_facts():
        results = [step(compiled, 4)]
    results += [step(compiled, 4) for _ in range(3)]
    found = [program.steps.timing for program in made() if program.steps.timing is not None]
    assert len(found) == 2 and timed()  # forward and backward
    assert all(each.calls == 2 and 0 < each.least_ns <= each.total_ns for each in found)
    assert all(each.timing.calls == 2 and 0 < each.timing.least_ns <= each.timing.total_ns for each in timed())
    for result in results:
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_other_sizes(rows: int) -> None:
    compiled = smelt.compile(lambda x: (x.exp() + x.sum(0)).cumsum(0), dynamic=True)
    compiled(torch.randn(5, 3))
    x = torch.randn(rows, 3)
    expected = compiled(x)
    _, found = shown(lambda: compiled(x))
    assert torch.equal(expected, found)


class Kernels:
    """Of a GPU that notes what is launched together."""

    target = object()

    def __init__(self) -> None:
        self.launched: list[str] = []

    def segment(self, launches: list[str]) -> Callable[[Any], object]:
        return lambda table: self.launched.append("+".join(launches))


@pytest.mark.parametrize("refused", [False, True])
def test_on_a_gpu_kernels_are_first_launched_in_one_call(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """What is refused, and runs in another way, is found out by launching them together."""
    kernels = Kernels()
    made = steps.Steps(segments={"segment0": [steps.Step((steps.Origin(None, name),)) for name in "ab"]})
    scope: dict[str, Any] = {"kernels": kernels, "segment0": kernels.segment(["a", "b"]), "product0": None}
    program = observed.Observed(made, scope, {}, [["a", "b"]], None)
    program.always = True
    monkeypatch.setattr(observed, "anything_refused", lambda: refused)
    program.observe()
    rows, _ = shown(lambda: [scope["segment0"](None) for _ in range(3)])
    assert kernels.launched == (["a+b"] * 3 if refused else ["a+b", "a", "b", "a", "b"])
    assert rows == ({"smelt: a+b": 3} if refused else {"smelt: a+b": 1, "smelt: a": 2, "smelt: b": 2})
    program.restore()
    scope["segment0"](None)
    assert kernels.launched[-1] == "a+b"


def test_threads_that_look_and_others_that_do_not() -> None:
    compiled = smelt.compile(layer)
    expected = step(compiled, 4)
    wrong: list[str] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            found = step(compiled, 4)
            if not all(map(torch.equal, found, expected)):
                wrong.append("values")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for _ in range(10):
        shown(lambda: step(compiled, 4))
    stop.set()
    for each in threads:
        each.join()
    assert not wrong
    step(compiled, 4)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(observed.Observed, "is_observed", lambda *_: pytest.fail("observed"))
        step(compiled, 4)
