"""Results of a census: a Row for each architecture, an Outcome for each mode. Reads and writes JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.base.errors import SmeltError
from smelt.bench.reading import read_dataclass, write_dataclass

STATUSES = ("whole", "breaks", "forks", "wrong", "error", "timeout", "eager_fails")
"""The statuses of a row:

- whole: captured as one graph, with eager's result
- breaks: graph breaks, or more than one graph
- forks: not the usual result of eager, but exactly that of eager while `torch.compiler.is_compiling()` is true
- wrong: another result than eager's
- error: the compiler or the process failed
- timeout: the time limit was exceeded
- eager_fails: eager itself fails; the row is not counted
"""

_GRAVITY = ("wrong", "error", "timeout", "breaks", "forks", "whole", "eager_fails")


@dataclass
class Outcome:
    """The outcome of one mode (eval, train) of one architecture.

    Attributes:
        reasons: reason of a graph break -> number of occurrences.
        recompiles: number of graphs that the second call, with equal inputs, has added.
    """

    status: str
    error: str = ""
    graphs: int = 0
    breaks: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    recompiles: int = 0


@dataclass
class Row:
    """The results of one architecture: its class or family, its inputs, and its modes, or the reason why it has
    none.
    """

    name: str
    kind: str = ""
    shape: str = ""
    seconds: float = 0.0
    modes: dict[str, Outcome] = field(default_factory=dict)
    failure: str = ""
    error: str = ""

    @property
    def status(self) -> str:
        """The most severe status among the modes that eager runs."""
        if self.failure:
            return self.failure
        return min((outcome.status for outcome in self.modes.values()), key=_GRAVITY.index)

    @property
    def reasons(self) -> dict[str, int]:
        """Break reasons of all modes, each with the largest count of a mode."""
        found: dict[str, int] = {}
        for outcome in self.modes.values():
            for reason, times in outcome.reasons.items():
                found[reason] = max(times, found.get(reason, 0))
        return found

    @property
    def errors(self) -> list[str]:
        """The errors, with their modes."""
        found = [self.error] if self.error else []
        return found + [f"{mode}: {o.error}" for mode, o in self.modes.items() if o.error and o.status != "eager_fails"]


@dataclass
class Census:
    """The results of a whole run: rows, the library and its version, the command line, and the machine."""

    library: str
    version: str
    command: str
    started: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write JSON and replace the file atomically, so that an interrupted run leaves a readable file."""
        write_dataclass(self, path)

    @classmethod
    def load(cls, path: Path) -> Census:
        """Read a file that `save` wrote.

        Raises:
            SmeltError: the file cannot be read or is not a census; the message says what to try.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            census = read_dataclass(cls, data, "the census")
            for row in census.rows:
                for status in filter(None, (row.failure, *(outcome.status for outcome in row.modes.values()))):
                    if status not in STATUSES:
                        raise ValueError(f"row {row.name!r}: unknown status {status!r}")
        except OSError as error:
            raise SmeltError(f"cannot read {path}", why=error.strerror, hint=FROM_CENSUS) from None
        except ValueError as error:
            raise SmeltError(f"{path} holds no census", why=str(error), hint=FROM_CENSUS) from None
        return census


FROM_CENSUS = "give a file that `smelt census --json FILE` wrote"
