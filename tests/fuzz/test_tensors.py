"""A slice of the sweep of tensor programs, and that it would see what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

from .tensor_grammar import Input, Program
from .tensor_programs import make_program
from .tensor_runs import compare
from .tensors import kind_of, report, shrink

SLICE = 12
SIZES = {"N": 5, "M": 7, "B": 2}


@pytest.mark.parametrize("number", range(SLICE))
def test_a_random_program(number: int) -> None:
    program = make_program(f"slice:{number}")
    found = compare(program)
    assert found["status"] in ("same", "invalid"), f"{found['detail']}\n{program}"


@pytest.mark.parametrize("number", range(4))
def test_a_random_program_on_triton(number: int) -> None:
    program = make_program(f"triton:{number}")
    found = compare(program, target="triton")
    assert found["status"] in ("same", "invalid"), f"{found['detail']}\n{program}"


def program_of(*lines: str, results: tuple[str, ...], exact: tuple[str, ...] = ()) -> Program:
    inputs = (Input("x0", "F32", ("N", "M"), "gaps", True), Input("x1", "F32", ("N", "M")))
    return Program(inputs, SIZES, tuple((line, line) for line in lines), results, frozenset(exact))


def plant(monkeypatch: pytest.MonkeyPatch, fault: Callable[[list[torch.Tensor]], Any]) -> None:
    """Have `smelt.compile` give a function that does something else."""

    def compile(fn: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        return lambda *args: fault(list(fn(*args)))

    monkeypatch.setattr(smelt, "compile", compile)


def test_the_sweep_sees_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of("v0 = x0.sin()", "v1 = x1 * 2", results=("v0", "v1"), exact=("v1",))
    plant(monkeypatch, lambda results: results)
    assert compare(program)["status"] == "same"
    plant(monkeypatch, lambda results: [results[0] * (1 + 1e-4), results[1]])
    assert kind_of(compare(program)) == "different values torch.float32"
    plant(monkeypatch, lambda results: [results[0], results[1] * (1 + 1e-7)])
    assert kind_of(compare(program)).startswith("different bits")
    plant(monkeypatch, lambda results: [results[0], results[1].t().contiguous().t()])
    assert kind_of(compare(program)).startswith("different strides")
    plant(monkeypatch, lambda results: [results[0].detach(), results[1]])
    assert kind_of(compare(program)).startswith("different requires_grad")
    plant(monkeypatch, lambda results: [results[0] + 0 * results[0].sum().square(), results[1]])
    assert compare(program)["status"] == "same"
    plant(monkeypatch, lambda results: [results[0] * 2 - results[0].detach(), results[1]])
    assert kind_of(compare(program)).startswith("different gradient")
    kept = torch.zeros(5, 7)
    plant(monkeypatch, lambda results: [results[0], kept.copy_(results[1])])
    assert kind_of(compare(program)).startswith("different held")
    plant(monkeypatch, lambda results: results[5])
    assert compare(program)["status"] == "error"


def test_a_failing_program_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("v0 = x1.exp()", "v1 = x0.cos()", "v2 = v1.t()", "v3 = v0 + 1")
    program = program_of(*lines, results=("v2", "v3"))
    plant(monkeypatch, lambda results: [results[0] + 0.01, *results[1:]])
    found = compare(program)
    small = shrink(program, kind_of(found), "cpu", "auto")
    assert len(small.lines) == 2 and len(small.inputs) == 1 and len(small.results) == 1  # a result and what it needs
    assert "1 of kind: different values" in report([{"row": "3", **found, "program": str(small)}], "1")


def test_programs_are_the_same_each_time_and_of_all_kinds() -> None:
    programs = [make_program(f"1:{n}") for n in range(250)]
    assert [str(p) for p in programs[:5]] == [str(make_program(f"1:{n}")) for n in range(5)]
    text = "\n".join(map(str, programs))
    for part in (
        " leaf",
        "overlapping",
        "BF16",
        "U8",
        ".view(I",
        " @ ",
        "scatter",
        "[1:] =",
        "softmax",
        "dynamic",
        "cat(",
    ):
        assert part in text, part
