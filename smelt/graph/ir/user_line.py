"""Finds the line of the program to which a captured operation belongs: the innermost one outside of PyTorch's code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

TORCH = os.path.dirname(torch.__file__) + os.sep


def lines_of(node: fx.Node) -> Iterator[Any]:
    """Yields the locations of an operation and of its callers, innermost first; `str(location)` is "file:line"."""
    at, callers = node.meta.get("at"), node.meta.get("callers")
    if at is not None:
        yield at
    while callers is not None:
        callers, at = callers
        if at is not None:
            yield at


def user_line(node: fx.Node) -> Any:
    """Returns the location in the user's code; for a layer of `torch.nn` that of its call. None: not known."""
    innermost = node.meta.get("at")
    if innermost is None or not is_of_torch(innermost):
        return innermost
    return next((at for at in lines_of(node) if not is_of_torch(at)), innermost)


def is_of_torch(at: Any) -> bool:
    """Whether a location is in PyTorch's own code."""
    return bool(at.code.co_filename.startswith(TORCH))
