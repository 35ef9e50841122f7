"""An indenting writer for generated source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


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
    """The texts of the functions named, by name, each once and after those it needs.

    Args:
        functions: the text of each, and the names of the functions that it calls.
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
