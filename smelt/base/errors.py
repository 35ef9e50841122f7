"""Errors and warnings of smelt; each message names the problem, the line of the user's code, and what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from smelt.base.text import on_one_line, visible

DOCS = "docs/"
"""The folder of the documentation pages that errors name."""


class SmeltError(RuntimeError):
    """Base of every error that smelt raises on purpose. A note below the message names a page of the documentation.

    Args:
        what: the problem, in the user's terms.
        at: `file.py:line` in the user's code; None if no line is known.
        why: the reason, when it is not obvious from `what`.
        hint: what to try.

    Attributes:
        page: name of the page in `DOCS` that describes this class of errors.
    """

    page: ClassVar[str] = "errors/smelt-error.md"

    def __init__(self, what: str, *, at: str | None = None, why: str | None = None, hint: str | None = None) -> None:
        self.what, self.at, self.why, self.hint = what, at, why, hint
        lines = [what]
        lines += [f"  at:  {on_one_line(at)}"] if at else []
        lines += [f"  why: {why}"] if why else []
        lines += [f"  try: {hint}"] if hint else []
        super().__init__(visible("\n".join(lines)))
        self.add_note(f"see {DOCS}{self.page}")  # tracebacks show the note; str(error) does not contain it


class Unsupported(SmeltError):
    """Capture met Python that it cannot put in a graph (a graph break; an error under `fullgraph`)."""

    page: ClassVar[str] = "errors/unsupported.md"


class RecompileError(SmeltError):
    """A call needs compilation while the stance is "fail_on_recompile"."""

    page: ClassVar[str] = "errors/recompile-error.md"


class SpecializationError(SmeltError):
    """A size is marked dynamic by the user, but a line of the code works for only one value of it."""

    page: ClassVar[str] = "errors/specialization-error.md"


class CompileError(SmeltError):
    """A stage after capture failed. Without `SMELT_STRICT=1` the frame runs in eager instead."""

    page: ClassVar[str] = "errors/compile-error.md"


class BuildError(CompileError):
    """The C++, Triton or C compiler is missing or rejected the generated source."""

    page: ClassVar[str] = "errors/build-error.md"


class OptionError(SmeltError, ValueError):
    """A backend, mode or option is unknown, or a value has the wrong type."""

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
    """Text of a user's value for a message: on one line, shortened to `_LONGEST` characters, even if `repr` raises."""
    try:
        text = repr(str.__str__(value) if isinstance(value, str) else value)
    except Exception:
        text = object.__repr__(value)
    text = on_one_line(str.__str__(text))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


_LONGEST = 200
"""Maximum number of characters of a value in a message."""
