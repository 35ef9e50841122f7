"""Open loops of a kernel under construction: each statement is emitted once, in the outermost loop that allows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from smelt.shapes.size import IntLike, same


@dataclass(slots=True, frozen=True)
class V:
    """A value in generated code: its text (a name or literal), dtype and the depth of the loops on which it depends."""

    text: str
    dtype: torch.dtype
    depth: int


@dataclass(slots=True)
class Scope:
    """The lines of one open loop body, and values computed in it by key; `guarded`: values computed under
    conditions.
    """

    lines: list[str] = field(default_factory=list)
    known: dict[object, V] = field(default_factory=dict)
    guarded: dict[object, list[tuple[frozenset[str], V]]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)


def close_parallel(
    scopes: Scopes, loops: Sequence[tuple[str, IntLike]], pragma: Sequence[str], text_of: Callable[[IntLike], str]
) -> None:
    """End a scope that consists of several (name, size) loops collapsed into one loop, whose counter each iteration
    splits.

    `text_of`: function that returns the C text of a size.
    """
    count = math.prod(size for _, size in loops)
    bound = text_of(count)
    if len(loops) == 1:
        name = loops[0][0]
        scopes.close([*pragma, f"for (int64_t {name} = 0; {name} < {bound}; {name}++) {{"], ["}"])
        return
    decode: list[str] = []
    step: IntLike = 1
    for name, size in reversed(loops):
        text = "k" if same(step, 1) else f"k / {text_of(step)}"
        step *= size
        decode.append(f"    const int64_t {name} = {text if same(step, count) else f'({text}) % {text_of(size)}'};")
    scopes.close([*pragma, f"for (int64_t k = 0; k < {bound}; k++) {{", *decode[::-1]], ["}"])


class Scopes:
    """A stack of scopes; depth 0 is the function body."""

    def __init__(self) -> None:
        self.stack = [Scope()]
        self._names: dict[str, int] = {}

    @property
    def depth(self) -> int:
        return len(self.stack) - 1

    def name(self, stem: str) -> str:
        """Returns a fresh name; numbers count per stem, so that equal kernels get equal text."""
        number = self._names.get(stem, 0)
        self._names[stem] = number + 1
        return f"{stem}{number}"

    def open(self) -> None:
        self.stack.append(Scope())

    def close(self, head: list[str], tail: list[str]) -> None:
        """End the innermost scope: its lines, indented, between `head` and `tail`, are added to the enclosing scope."""
        scope = self.stack.pop()
        around = self.stack[-1].lines
        around += head
        around += ["    " + line for line in scope.lines + scope.late]
        around += tail

    def line(self, text: str, depth: int | None = None) -> None:
        self.stack[self.depth if depth is None else depth].lines.append(text)

    def later(self, text: str, depth: int) -> None:
        """Add a line at the end of a scope: stores come after every load of the iteration."""
        self.stack[depth].late.append(text)

    def find(self, key: object) -> V | None:
        for scope in self.stack:
            value = scope.known.get(key)
            if value is not None:
                return value
        return None

    def level(self, depth: int) -> int:
        """Returns the index of the scope of values of this depth."""
        return depth

    def remember(self, key: object, value: V) -> V:
        self.stack[self.level(value.depth)].known[key] = value
        return value

    def find_under(self, key: object, conditions: frozenset[str]) -> V | None:
        """Returns a value computed under some of these conditions, or under none, which is therefore valid where all of
        them are met; None if there is no such value.
        """
        for scope in self.stack:
            for needed, value in scope.guarded.get(key, ()):
                if needed <= conditions:
                    return value
        return None

    def remember_under(self, key: object, conditions: frozenset[str], value: V) -> None:
        self.stack[self.level(value.depth)].guarded.setdefault(key, []).append((conditions, value))

    def define(self, ctype: str, text: str, dtype: torch.dtype, depth: int, stem: str = "t") -> V:
        """Define a constant with the value `text`, computed at `depth`; the same text at the same depth is computed
        once.
        """
        key = ("text", ctype, text)
        known = self.find(key)
        if known is not None:
            return known
        name = self.name(stem)
        self.line(f"const {ctype} {name} = {text};", depth)
        return self.remember(key, V(name, dtype, depth))
