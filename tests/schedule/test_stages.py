"""Stages of results: which belong together, that they are final where a stage ends, and when there are none."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from smelt import driver
from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder


def chain(seed: int, count: int = 9) -> torch.fx.GraphModule:
    """Products one behind the other, each of them a result beside what goes on; their order among results is drawn."""
    draw = random.Random(seed)
    g = GraphBuilder()
    weight, value = g.input(32, 32), g.input(32, 32)
    results = []
    for _ in range(count):
        value = g.mm(value, weight)
        results.append(g.mm(value, g.input(32, draw.choice([8, 32, 64]))))
    draw.shuffle(results)
    return g.build(*results)


def planned(gm: torch.fx.GraphModule, stage_bytes: int, **more: object) -> Schedule:
    return schedule(lower(gm), Options(), stage_bytes=stage_bytes, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("machine", [{}, {"machine": GPU}])
def test_each_result_is_given_once_after_its_last_use(seed: int, machine: dict[str, object]) -> None:
    plan = planned(chain(seed), 5000, **machine)
    assert len(plan.stages) > 2
    given = [i for stage in plan.stages for i in stage.results]
    assert sorted(given) == list(range(len(plan.program.outputs)))
    assert [stage.last for stage in plan.stages] == sorted({stage.last for stage in plan.stages})
    assert plan.stages[-1].last == len(plan.steps) - 1
    for stage in plan.stages[:-1]:
        for i in stage.results:
            assert plan.last_use[plan.program.outputs[i].name or ""] <= stage.last


@pytest.mark.parametrize("stage_bytes", [0, 1 << 30])
def test_one_stage_is_none(stage_bytes: int) -> None:
    plan = planned(chain(0), stage_bytes)
    assert plan.stages == []
    assert plan.steps == planned(chain(0), 0).steps


def test_fewer_bytes_more_stages() -> None:
    counts = [len(planned(chain(1), size).stages) for size in (1, 9000, 20000, 1 << 30)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 9 and counts[-1] == 0


def made_by(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.output_node().args[0]]  # type: ignore[union-attr]


def asked(monkeypatch: pytest.MonkeyPatch, bucket: int, name: str = "backward", **options: object) -> int:
    """Bytes of a stage of a backward that is compiled while a DDP module with such buckets runs, or (0) outside."""
    monkeypatch.setattr(driver, "ddp_bucket_bytes", lambda: bucket)
    gm = chain(0)
    gm.graph.output_node().meta["val"] = made_by(gm)
    return driver._stage_bytes(gm, Options(**options), name)  # type: ignore[arg-type]


def test_when_a_backward_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(meta.nbytes for meta in made_by(chain(0)))
    assert asked(monkeypatch, 0) == 0
    assert asked(monkeypatch, total) == total
    assert asked(monkeypatch, 1) == total // driver.STAGES  # not more than so many
    assert asked(monkeypatch, total, name="forward") == 0
    assert asked(monkeypatch, total, stages=0) == 0
    assert asked(monkeypatch, 0, stages=77) == 77
    assert asked(monkeypatch, total, cuda_graphs=False) == asked(monkeypatch, total, cuda_graphs=True) == total
