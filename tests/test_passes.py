"""Every pass over a graph that the pipeline runs is printed and verified (smelt/pipeline.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import smelt
from smelt import pipeline
from smelt.graph.verify import InvalidGraph
from smelt.loops.describe import describe
from smelt.loops.ir import LoopProgram
from smelt.loops.verify import InvalidLoops
from smelt.passes import PassRunner
from smelt.schedule.plan import Schedule
from smelt.schedule.verify import InvalidSchedule


def tiny(fn: Any) -> None:
    fn(torch.randn(3, 4, requires_grad=True)).sum().backward()


def square(x: Tensor) -> Tensor:
    return x.sin() * x


def large(fn: Any) -> None:
    fn(torch.randn(600, 600, requires_grad=True))[0].backward()


def loss_and_results(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin().sum(), x * 2


def picked(x: Tensor) -> Tensor:
    return x[x > 0].sin()


def picked_by_a_value(x: Tensor) -> Tensor:
    return x[x.exp() > 1].sin().sum()


def none_positive(fn: Any) -> None:
    for x in (torch.ones(4), -torch.ones(4), -torch.ones(4)):
        fn(x)


def some_positive(fn: Any) -> None:
    fn(torch.ones(4))


PASSES: dict[str, tuple[Callable[..., Any], Callable[[Any], None], str]] = {
    "trace_joint": (square, tiny, "2_joint.py"),
    "decompose": (square, tiny, "3_decompose.py"),
    "add_rows_into_sums": (square, tiny, "3_add_rows_into_sums.py"),
    "with_channels_last": (square, tiny, "3_with_channels_last.py"),
    "partition": (square, tiny, "3_partition_forward.py"),
    "likely_backward": (loss_and_results, large, "3_likely_backward.py"),
    "split_at_reads": (picked_by_a_value, some_positive, "3_forward0.py"),
    "emptied": (picked, none_positive, "3_emptied.py"),
}
"""Pass -> a program that goes through it, a call, the artefact that shows what it made."""


def graphs(made: Any) -> list[fx.GraphModule]:
    """The graphs of what a pass returns."""
    match made:
        case fx.GraphModule():
            return [made]
        case (fx.GraphModule() as gm, *_):
            return [gm]
        case pipeline.Joint(module=module):
            return [module]
    return [part.module for part in made.parts if part.module is not None] if made is not None else []


def spoil(gm: fx.GraphModule) -> None:
    """Record another dtype than the operands of the last call give."""
    for node in reversed(gm.graph.nodes):
        val = node.meta.get("val")
        if node.op == "call_function" and getattr(val, "dtype", None) is torch.float32:
            node.meta["val"] = dataclasses.replace(val, dtype=torch.float64)
            return


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SMELT_TRACE", "1")
    monkeypatch.setenv("SMELT_TRACE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", list(PASSES))
def test_it_is_printed(name: str, trace: Path) -> None:
    fn, call, file = PASSES[name]
    call(smelt.compile(fn))
    assert list(trace.glob(f"*/{file}")), sorted(path.name for path in trace.glob("*/*"))


@pytest.mark.parametrize("name", list(PASSES))
def test_it_is_verified(name: str, monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    fn, call, file = PASSES[name]
    run = getattr(pipeline, name)

    def spoilt(*args: Any, **kwargs: Any) -> Any:
        made = run(*args, **kwargs)
        for gm in graphs(made):
            spoil(gm)
        return made

    spoilt.__name__ = name
    monkeypatch.setattr(pipeline, name, spoilt)
    monkeypatch.setattr(
        pipeline, "PRIM_PASSES", tuple(spoilt if each is run else each for each in pipeline.PRIM_PASSES)
    )
    with pytest.raises(InvalidGraph, match="joint graph|prims graph"):
        call(smelt.compile(fn))
    assert list(trace.glob(f"*/{file}"))  # the graph that is wrong is there to be looked at


def lost_load(loops: LoopProgram) -> None:
    """Record of the last value that it reads nothing."""
    name, node = next((name, node) for name, node in reversed(loops.nodes.items()) if node.inputs)
    loops.nodes[name] = dataclasses.replace(node, inputs=())


def lost_step(plan: Schedule) -> None:
    plan.steps.pop()


@pytest.mark.parametrize(
    ("name", "spoil", "error", "file"),
    [
        ("lower", lost_load, InvalidLoops, "4_*_loops.txt"),
        ("schedule", lost_step, InvalidSchedule, "5_*_schedule.txt"),
    ],
)
def test_loops_and_schedules_are_verified(
    name: str, spoil: Callable[[Any], None], error: type, file: str, monkeypatch: pytest.MonkeyPatch, trace: Path
) -> None:
    run = getattr(pipeline, name)

    def spoilt(*args: Any, **kwargs: Any) -> Any:
        made = run(*args, **kwargs)
        spoil(made)
        return made

    spoilt.__name__ = name
    monkeypatch.setattr(pipeline, name, spoilt)
    with pytest.raises(error):
        tiny(smelt.compile(square))
    assert list(trace.glob(f"*/{file}"))


def described(value: Any) -> list[str]:
    """What a pass is given, as text: the names, operands and metadata of a graph, a loop program's own text."""
    match value:
        case fx.GraphModule():
            return [repr(value.meta), *(f"{n.format_node()} {n.args} {n.kwargs} {n.meta}" for n in value.graph.nodes)]
        case pipeline.Joint(module=module):
            return described(module)
        case LoopProgram():
            return [describe(value)]
    return []


def table_used_twice(x: Tensor) -> Tensor:
    rows = torch.nn.functional.embedding(torch.tensor([3, 1, 3]), x)
    return (rows @ x.t()).sum()


def table(fn: Any) -> None:
    fn(torch.randn(40, 16, requires_grad=True)).backward()


ALSO_GIVEN: dict[str, tuple[Callable[..., Any], Callable[[Any], None]]] = {
    "lower": (square, tiny),
    "schedule": (square, tiny),
    "rows of a table": (table_used_twice, table),
    "without gradients": (square, lambda fn: fn(torch.randn(3, 4))),
}


@pytest.mark.parametrize("name", [*PASSES, *ALSO_GIVEN])
def test_it_leaves_what_it_is_given_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, call = PASSES[name][:2] if name in PASSES else ALSO_GIVEN[name]
    run, ran = PassRunner.__call__, []

    def compared(self: PassRunner, stage: str, make: Any, *args: Any, **kwargs: Any) -> Any:
        before = [described(each) for each in args]
        made = run(self, stage, make, *args, **kwargs)
        assert [described(each) for each in args] == before, f"{make.__name__} changed what it was given"
        ran.append(make.__name__)
        return made

    monkeypatch.setattr(PassRunner, "__call__", compared)
    call(smelt.compile(fn))
    expected = {"rows of a table": "add_rows_into_sums", "without gradients": "partition"}
    assert expected.get(name, name) in ran
