"""An indenting writer for generated source, and escaping of arbitrary names for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Pattern of the characters that control a terminal, are invalid in HTML, are invisible, or reorder other
characters."""


def visible(text: str) -> str:
    """The text with the characters of `_HIDDEN` escaped, so that a name cannot control a terminal or hide lines."""
    return text if text.isprintable() else _HIDDEN.sub(_written_out, text)


def on_one_line(text: str) -> str:
    """`visible`, with line ends replaced by spaces: for comments and messages of one line."""
    return text if text.isprintable() else visible(" ".join(text.splitlines()))  # a printable text has no line ends


def _written_out(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


class Writer:
    """Collects lines; `with w.block("for (...) {", "}"):` indents what is written inside."""

    def __init__(self, indent: str = "    ") -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._indent = indent

    def __call__(self, *lines: str) -> None:
        for line in lines:
            self._lines.append(self._indent * self._depth + line if line else "")

    @contextmanager
    def block(self, head: str, tail: str | None = None) -> Iterator[None]:
        self(head)
        self._depth += 1
        yield
        self._depth -= 1
        if tail is not None:
            self(tail)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def with_needs(used: Iterable[str], functions: Mapping[str, tuple[str, Iterable[str]]]) -> list[str]:
    """The texts of the functions `used` and of the functions that they call, each once, callees before callers.

    Args:
        functions: name of a function -> its text, and the names of the functions that it calls.
    """
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in texts:
            text, needs = functions[name]
            for other in needs:
                add(other)
            texts[name] = text

    for name in sorted(used):
        add(name)
    return [*texts.values()]
