"""Picks the fastest alternative from measured times, and remembers the choice in memory and in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from smelt.base.locks import new_lock
from smelt.base.store import store

Name = TypeVar("Name", str, int)


@dataclass(frozen=True)
class Tuner(Generic[Name]):
    """The choices between alternatives of one kind.

    Attributes:
        kind: the kind of its entries in the store, which are JSON text.
        tie: candidates whose times differ by less than this factor are treated as equal, and the one listed first is
            chosen.
        close: a candidate whose best time is at least this factor above the best of all is not measured further.
    """

    kind: str
    tie: float
    close: float
    _known: dict[str, Name] = field(default_factory=dict)
    _lock: Any = field(default_factory=new_lock)

    def remembered(self, key: str, exists: Callable[[Name], bool] = lambda name: True) -> Name | None:
        """Returns the winner of a choice, from memory or the store; None if it is not among the present candidates."""
        with self._lock:
            if key in self._known:
                return self._known[key]
        text = store().get_text(self.kind, key)
        if text is None:
            return None
        try:
            winner: Name = json.loads(text)["winner"]
            if not exists(winner):
                return None
        except (ValueError, KeyError, TypeError):
            return None  # an entry in an older format is ignored, so the candidates are timed
        with self._lock:
            self._known[key] = winner
        return winner

    def fastest(self, times: Mapping[Name, float]) -> Name:
        """Returns the first candidate that is as fast as the fastest one."""
        least = min(times.values())
        return next(name for name, seconds in times.items() if seconds <= self.tie * least)

    def is_slower(self, seconds: float, least: float) -> bool:
        """Whether a candidate drops out, given its best time and the best time of all."""
        return seconds > self.close * least

    def keep(self, key: str, winner: Name, record: Mapping[str, Any] | None) -> None:
        """Remember a winner. `record`: its entry in the store; None: only this process remembers it."""
        with self._lock:
            self._known[key] = winner
        if record is not None:
            store().put_text(self.kind, key, json.dumps({"winner": winner, **record}, indent=1) + "\n")

    def forget(self) -> None:
        """Clear the cache in memory; the store keeps its entries."""
        with self._lock:
            self._known.clear()
