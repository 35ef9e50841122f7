"""Lines of a Triton function under construction: in the loop if they depend on the walked axis, else before it."""

from __future__ import annotations

import torch

from smelt.codegen.scope import Scopes, V


class TileScopes(Scopes):
    """Scopes whose values have, as their depth, the set of tile axes along which they vary (bit k: axis k).

    At most one loop is open; `walked` is the set of axes that it walks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.walked = 0

    def level(self, axes: int) -> int:
        """Returns the index of the scope of values that vary along these axes."""
        return self.depth if axes & self.walked else 0

    def line(self, text: str, depth: int | None = None) -> None:
        self.stack[self.depth if depth is None else self.level(depth)].lines.append(text)

    def later(self, text: str, depth: int) -> None:
        self.stack[self.level(depth)].late.append(text)

    def define(self, ctype: str, text: str, dtype: torch.dtype, depth: int, stem: str = "t") -> V:
        key = ("text", text)
        known = self.find(key)
        if known is not None and known.dtype is dtype:
            return known
        name = self.name(stem)
        self.line(f"{name} = {text}", depth)
        return self.remember(key, V(name, dtype, depth))

    def finish(self, level: int = 0) -> list[str]:
        """Returns all lines of a scope, stores last."""
        return self.stack[level].lines + self.stack[level].late
