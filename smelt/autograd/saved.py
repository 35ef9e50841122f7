"""What eager's autograd graph saves of a traced program: read from the engine's own nodes after the forward.

The caller may write to an input or a result before the backward. Where eager saved that tensor, this is an error, or
the gradients follow; where it saved something else, gradients are as if nothing had happened. So a compiled backward
takes such tensors by themselves only where eager does, and otherwise values of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from smelt.graph.trace import Place, TraceTensor


def saved_places(heads: Iterable[torch.Tensor]) -> Iterator[Place]:
    """The places of the tensors that the histories of `heads` have saved, but for those overwritten since."""
    waiting: list[Any] = [head.grad_fn for head in heads]
    seen: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        for value in _saved_by(node):
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if type(one) is TraceTensor:
                    yield one.place


def _saved_by(node: Any) -> Iterator[Any]:
    kind: Any = type(node)
    if hasattr(kind, "_forward_cls"):  # of a function in Python, which may keep tensors in any attribute
        yield from vars(node).values()
    for name in _names(kind):
        try:
            yield getattr(node, name)
        except RuntimeError:
            continue  # overwritten, or let go by a backward of the program's own


def _names(kind: type) -> tuple[str, ...]:
    """The attributes under which nodes of a kind show the tensors that they save: to read a size would fix it."""
    return ("saved_tensors",) if hasattr(kind, "_forward_cls") else _raw_names(kind)


@functools.cache
def _raw_names(kind: type) -> tuple[str, ...]:
    """Of a kind of PyTorch's own, which stays."""
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))
