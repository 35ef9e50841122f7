"""Errors and warnings. Each says what went wrong, where in the user's code and what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from smelt.base.text import on_one_line, visible

DOCS = "docs/"
"""The folder of the pages to which errors refer."""


class SmeltError(RuntimeError):
    """Base of every error that smelt raises on purpose. A note below its text names its page.

    Args:
        what: the problem, in the user's terms.
        at: `file.py:line` in the user's code, where one is known.
        why: the reason, when it is not obvious from `what`.
        hint: what to try.

    Attributes:
        page: about the class, in `DOCS`.
    """

    page: ClassVar[str] = "errors/smelt-error.md"

    def __init__(self, what: str, *, at: str | None = None, why: str | None = None, hint: str | None = None) -> None:
        self.what, self.at, self.why, self.hint = what, at, why, hint
        lines = [what]
        lines += [f"  at:  {on_one_line(at)}"] if at else []
        lines += [f"  why: {why}"] if why else []
        lines += [f"  try: {hint}"] if hint else []
        super().__init__(visible("\n".join(lines)))
        self.add_note(f"see {DOCS}{self.page}")  # shown by a traceback; str(error) is what went wrong alone


class Unsupported(SmeltError):
    """Capture met Python that it cannot put in a graph (a graph break; an error under `fullgraph`)."""

    page: ClassVar[str] = "errors/unsupported.md"


class RecompileError(SmeltError):
    """A call would have had to compile, and the stance is "fail_on_recompile"."""

    page: ClassVar[str] = "errors/recompile-error.md"


class SpecializationError(SmeltError):
    """A size that the user marked dynamic, and a line that works for one value of it only."""

    page: ClassVar[str] = "errors/specialization-error.md"


class CompileError(SmeltError):
    """A stage after capture failed. Without `SMELT_STRICT=1` the frame runs in eager instead."""

    page: ClassVar[str] = "errors/compile-error.md"


class BuildError(CompileError):
    """The C++ (or Triton, or C) compiler is missing or refused the generated source."""

    page: ClassVar[str] = "errors/build-error.md"


class OptionError(SmeltError, ValueError):
    """An unknown backend, mode or option, or a value of the wrong type."""

    page: ClassVar[str] = "errors/option-error.md"


class SmeltWarning(UserWarning):
    """The category of every warning that smelt emits."""

    page: ClassVar[str] = "errors/smelt-warning.md"

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(each) if isinstance(each, str) else each for each in args))


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> OptionError:
    """The error for a name that is not one of `valid`: lists them and the nearest one."""
    names = sorted(valid)
    near = difflib.get_close_matches(str.__str__(name)[:_LONGEST], names, n=1) if issubclass(type(name), str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    return OptionError(f"unknown {kind} {shown(name)}", hint=f"{hint}valid: {', '.join(map(repr, names))}")


def shown(value: object) -> str:
    """A value that somebody passed, for a message: on one line, of some length, also where its `repr` raises."""
    try:
        text = repr(str.__str__(value) if isinstance(value, str) else value)
    except Exception:
        text = object.__repr__(value)
    text = on_one_line(str.__str__(text))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


_LONGEST = 200
"""Characters of a value in a message."""
