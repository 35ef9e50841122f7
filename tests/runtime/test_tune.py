"""Choosing by time: the fastest wins, answers are remembered in memory and on disk, clear losers cost little."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import smelt
from smelt.base.store import store
from smelt.runtime import tune
from smelt.runtime.tune import choose, forget, measure, remembered
from smelt.runtime.tuned import TIMING


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    forget()


class Clock:
    """Stands in for `time.perf_counter`: candidates advance it by what they claim to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def candidate(self, name: str, *seconds: float) -> Callable[[], None]:
        times = list(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now += times.pop(0) if len(times) > 1 else times[0]

        return run


def test_fastest_wins_and_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    candidates = {"slow": clock.candidate("slow", 3e-3), "fast": clock.candidate("fast", 1e-3)}
    assert remembered("op", ("slow", "fast")) is None
    assert choose("op", candidates) == "fast"
    before = len(clock.calls)
    assert choose("op", candidates) == "fast" and len(clock.calls) == before
    forget()
    assert remembered("op", ("slow", "fast")) == "fast"  # from the store
    assert remembered("op", ("slow", "fast", "third")) is None  # another set of candidates


def test_setup_and_disturbances_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    candidates = {
        "fast": clock.candidate("fast", 9e-3, 8e-3, 1e-3),  # set-up, then another process, then its real time
        "slow": clock.candidate("slow", 2e-3),
    }
    assert choose("op", candidates) == "fast"


def test_clear_losers_and_long_runs_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runs = measure({"a": clock.candidate("a", 1e-3), "b": clock.candidate("b", 5e-3)})
    assert len(runs["b"]) == TIMING.min_runs
    runs = measure({"a": clock.candidate("a", 1.0), "b": clock.candidate("b", 5.0)})
    assert [len(times) for times in runs.values()] == [1, 1]


def test_candidates_that_always_lose_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for size in range(TIMING.max_losses + 1):
        clock.calls.clear()
        good, bad = clock.candidate("good", 1e-3), clock.candidate("bad", 2e-3)
        assert choose(f"op {size}", {"good": good, "bad": bad}, family="op") == "good"
    assert "bad" not in clock.calls
    other = {"good": clock.candidate("good", 2e-3), "bad": clock.candidate("bad", 1e-3)}
    assert choose("another op", other, family="another") == "bad"


def test_unsteady_answers_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    noisy = {"a": clock.candidate("a", 9e-3, 1e-3, 9e-3, 9e-3), "b": clock.candidate("b", 8e-3)}
    assert choose("op", noisy) == "a"
    forget()
    assert remembered("op", ("a", "b")) is None


def test_key_holds_the_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    choose("op", {"a": clock.candidate("a", 1e-3), "b": clock.candidate("b", 2e-3)})
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert remembered("op", ("a", "b")) is None
    finally:
        torch.set_num_threads(before)


def test_entries_are_plain_json_and_bad_ones_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    choose("op", {"a": clock.candidate("a", 1e-3), "b": clock.candidate("b", 2e-3)})
    key = tune._key("op", ("a", "b"))
    text = store().get_text("tune", key)
    assert text is not None and json.loads(text)["winner"] == "a"
    for bad in ("{}", "[", '{"winner": "gone"}', "[1]"):
        forget()
        store().put_text("tune", key, bad)
        assert remembered("op", ("a", "b")) is None


def test_candidates_that_refuse_are_out() -> None:
    def refuse() -> None:
        raise RuntimeError("no such strides")

    assert choose("refusals", {"a": refuse, "b": lambda: None, "c": refuse}) == "b"
    with pytest.raises(RuntimeError, match="no such strides"):
        choose("refusals alone", {"a": refuse, "b": refuse})


def test_a_product_of_elements_that_overlap() -> None:
    x = torch.randn(600).as_strided((257, 257), (1, 1))
    compiled = smelt.compile(lambda x: torch.addmm(x, x, x.t() @ x))
    want = torch.addmm(x.double(), x.double(), x.t().double() @ x.double())
    torch.testing.assert_close(compiled(x).double(), want, rtol=1e-4, atol=1e-2)
