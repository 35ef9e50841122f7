"""What all choices by time have in common: ties, the memory of winners, and entries of the store that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.base.store import content_key, store
from smelt.runtime.tuner import Tuner

KEY, HERE, STORED = map(content_key, ("key", "here", "stored"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))


def test_the_first_of_equals_wins() -> None:
    tuner: Tuner[str] = Tuner("tune", tie=1.1, close=1.5)
    assert tuner.fastest({"a": 1.05, "b": 1.0}) == "a"
    assert tuner.fastest({"a": 1.2, "b": 1.0}) == "b"
    assert tuner.is_slower(1.6, 1.0) and not tuner.is_slower(1.5, 1.0)


def test_winners_are_remembered_by_this_process_or_by_all() -> None:
    tuner: Tuner[int] = Tuner("triton-tune", tie=1.0, close=1.0)
    tuner.keep(HERE, 2, None)
    tuner.keep(STORED, 3, {"seconds": {3: 0.5}})
    assert (tuner.remembered(HERE), tuner.remembered(STORED)) == (2, 3)
    tuner.forget()
    assert (tuner.remembered(HERE), tuner.remembered(STORED)) == (None, 3)
    assert Tuner("triton-product", 1.0, 1.0).remembered(STORED) is None  # of another kind


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"seconds": {}}', '{"winner": 9}', '{"winner": "a"}'])
def test_an_entry_that_does_not_fit_is_as_good_as_none(text: str) -> None:
    tuner: Tuner[int] = Tuner("triton-tune", tie=1.0, close=1.0)
    store().put_text("triton-tune", KEY, text)
    assert tuner.remembered(KEY, lambda winner: 0 <= winner < 4) is None
    tuner.keep(KEY, 1, {})
    tuner.forget()
    assert tuner.remembered(KEY, lambda winner: 0 <= winner < 4) == 1
