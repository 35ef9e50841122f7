"""What the nodes of PyTorch's autograd graph have saved, and whether they still have it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any


def saved_by(node: Any) -> Iterator[Any]:
    """What a node has saved, but for what was overwritten since."""
    kind: Any = type(node)
    if hasattr(kind, "_forward_cls"):  # of a function in Python, which may keep tensors in any attribute
        yield from vars(node).values()
    for name in _names(kind):
        try:
            yield getattr(node, name)
        except RuntimeError:
            continue  # overwritten, or let go by a backward of the program's own


def is_used_up(node: Any) -> bool:
    """A backward has let go of what the node had saved, so that there is no second one through it."""
    kind: Any = type(node)
    for name in _names(kind):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if "second time" in str(error):
                return True
    return False


def _names(kind: type) -> tuple[str, ...]:
    """The attributes under which nodes of a kind show the tensors that they save: to read a size would fix it."""
    return ("saved_tensors",) if hasattr(kind, "_forward_cls") else _raw_names(kind)


@functools.cache
def _raw_names(kind: type) -> tuple[str, ...]:
    """Of a kind of PyTorch's own, which stays."""
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))
