"""Adds to errors of a compiled backward the lines of the forward from which they come."""

from __future__ import annotations

import dis
from types import TracebackType

from smelt.abi.steps import Steps, label
from smelt.base.text import visible


def note_line(error: Exception) -> None:
    """Add the user's lines to an error of a library call in a compiled backward; has no effect on other errors."""
    entry = error.__traceback__
    while entry is not None:
        steps = getattr(entry.tb_frame.f_globals.get("observed"), "steps", None)
        if isinstance(steps, Steps):
            location = _called(entry, steps)
            if location:
                error.add_note(f"in the compiled backward: {visible(location)}")
            return
        entry = entry.tb_next


def _called(entry: TracebackType, steps: Steps) -> str:
    """Returns the steps of a host program that its failing line calls, found by the names that the line loads."""
    for instruction in dis.get_instructions(entry.tb_frame.f_code):
        location = instruction.positions
        if location is not None and location.lineno == entry.tb_lineno and instruction.argval in steps.externs:
            return label(steps.externs[instruction.argval].origins)
    return ""
