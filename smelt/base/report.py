"""The results of each compiler stage as text. `SMELT_TRACE=1` writes one numbered folder per graph."""

from __future__ import annotations

import itertools
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smelt.base.errors import SmeltWarning
from smelt.base.eviction import MINIFIED, REPORTS, is_of_report
from smelt.base.options import environment
from smelt.base.private_folder import (
    NEW_FILE_PREFIX,
    make_private,
    remove,
    remove_empty,
    require_own,
    write_private,
)
from smelt.base.stats import spend
from smelt.base.store import store
from smelt.base.text import visible

_numbers = itertools.count()
_collectors: list[object] = []
"""One token per active `asking` context."""


@contextmanager
def collecting_facts() -> Iterator[None]:
    """Context in which new reports collect facts about their compiled programs, whose steps are then timed."""
    token = object()
    _collectors.append(token)
    try:
        yield
    finally:
        _collectors.remove(token)


class Report:
    """The results of the pipeline's stages for one graph, as text by file name (`1_torch.py`, `4_loops.txt` ...).

    A stage passes a function that makes the text, which is called only if the text is written.

    Attributes:
        error: the error because of which the report is being saved; otherwise None.
        seconds: compile time of each stage.
        programs: facts about the compiled programs; None if they are not requested.
        plan: the schedule of the program that is being compiled, if it is requested.
        children: reports of graphs derived from this one (its pieces, its derivatives), if facts are requested.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.name = name
        self.folder = folder
        self.error: BaseException | None = None
        self.artefacts: dict[str, Callable[[], str]] = {}
        self.seconds: dict[str, float] = {}
        self.programs: list[Any] | None = [] if _collectors else None
        self.plan: Any = None
        self.children: list[Report] = []

    @classmethod
    def for_graph(cls, name: str) -> Report:
        """A report that writes to disk when SMELT_TRACE is set."""
        env = environment()
        report = cls(name)
        if env.trace:
            report.folder = env.trace_dir / f"{next(_numbers):03d}_{report.folder_name}"
        return report

    @property
    def folder_name(self) -> str:
        """The name of the graph as a safe folder name: a function may have a name such as `../x`."""
        return re.sub(r"[^\w<>.-]", "_", self.name).lstrip(".")[:100] or "graph"

    def derivative(self) -> Report:
        """The report of the graph that computes the gradients of this one."""
        return self.child(f"{self.name}_gradients")

    def child(self, name: str) -> Report:
        """A new report for a graph that is derived from this one."""
        report = Report.for_graph(name)
        if self.programs is not None:
            self.children.append(report)
        return report

    def spend(self, stage: str, seconds: float) -> None:
        """Add compile time to a stage, here and in `stats()`."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        spend(stage, seconds)

    def add(self, file: str, text: Callable[[], str]) -> None:
        """Keep `text` under the name `file`; write it now when tracing."""
        self.artefacts[file] = text
        self.dump(file, text)

    def dump(self, file: str, text: Callable[[], str]) -> None:
        """Write `text` when tracing without keeping it: for a graph that the next pass replaces."""
        if self.folder is None:
            return
        try:
            write_private(make_private(self.folder) / file, text())
        except OSError as error:
            warnings.warn(
                SmeltWarning(f"smelt cannot write the trace to {self.folder.parent} ({error.strerror or error})"),
                stacklevel=2,
            )
            self.folder = None

    def instead(self, file: str, text: Callable[[], str]) -> None:
        """Replace the function that makes the text of `file`, so that its graph can be freed; writes nothing."""
        self.artefacts[file] = text

    def forget(self, beginnings: str | tuple[str, ...] = "") -> None:
        """Drop the texts whose file names have one of these beginnings, so that their graphs can be freed."""
        for file in [name for name in self.artefacts if name.startswith(beginnings)]:
            del self.artefacts[file]

    def save(self, folder: Path, error: BaseException | None = None) -> Path | None:
        """Write every text into `folder` and return it, or None if the folder cannot be written.

        Args:
            error: the error of the stage that failed; its traceback is written, too.
        """
        self.error = error
        if error is not None:
            self.artefacts["traceback.txt"] = lambda: visible("".join(traceback.format_exception(error)))
        try:
            _replace(make_private(folder), {file: _printed(text) for file, text in self.artefacts.items()})
        except OSError:
            remove_empty(folder)
            return None
        finally:
            self.error = None  # its traceback keeps the frames of the failed stage alive
            self.artefacts.pop("traceback.txt", None)
        return folder


def _replace(folder: Path, texts: dict[str, str]) -> None:
    """Write the files of a report in the place of an earlier one: all of them, or, if the disk refuses, none.

    Raises:
        OSError: a file cannot be written.
    """
    made = {folder / f"{NEW_FILE_PREFIX}{os.getpid()}-{file}": folder / file for file in texts}
    try:
        for new, file in made.items():
            require_own(file)
            write_private(new, texts[file.name])
        for new, file in made.items():
            os.replace(new, file)
    finally:
        for new in made:
            remove(new)
    for each in folder.iterdir():
        if is_of_report(each.name) and each.name not in (*texts, MINIFIED) and not each.name.startswith("."):
            remove(each)  # of another failure in a function of this name


def saved_report(report: Report, error: BaseException | None) -> str:
    """Save the report of a failure in the folder of the cache; returns a message with its path, or that it failed."""
    folder = report.save(store().root / REPORTS / report.folder_name, error)
    return f"report in {folder}" if folder is not None else "the report could not be saved"


def _printed(text: Callable[[], str]) -> str:
    try:
        return text()
    except Exception as error:  # printing the graph may fail as well: the other texts are still written
        return f"could not be printed: {type(error).__name__}: {error}\n"
