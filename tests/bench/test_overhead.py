"""The cost of a call: timings over short loops, and a stack of small blocks."""

from __future__ import annotations

import pytest

from smelt.bench import overhead


def test_best_and_median_of_short_loops() -> None:
    calls = []
    timing = overhead.seconds_per_call(lambda: calls.append(1), budget_s=0.01)
    assert 0 < timing.best_s <= timing.median_s < 1e-3 and len(calls) > 100


def test_a_call_is_set_against_eager() -> None:
    found = overhead.call_overhead("eager", budget_s=0.01)
    assert found["call_s"] == found["eager_call_s"] <= found["call_median_s"]


def test_the_blocks_are_one_graph_with_guards_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "BLOCKS", 3)
    found = overhead.guard_overhead("smelt", "tiny-mlp", budget_s=0.01)
    assert found["empty_blocks_s"] == pytest.approx(found["empty_call_s"] + found["block_guards_s"])
    assert {"eager_blocks_s", "empty_model_median_s", "guards_s"} <= set(found)
