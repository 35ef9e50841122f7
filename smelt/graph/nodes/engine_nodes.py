"""The nodes of PyTorch's autograd graph, what they have saved, and whether they still have it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def nodes_below(heads: Iterable[Any]) -> Iterator[Any]:
    """Every node of the graph that begins at these nodes, once; None among them stands for no history."""
    waiting = [node for node in heads if node is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)


def history(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Every node of the graph that these tensors come from, once; none for a tensor that autograd forbids to use."""
    return nodes_below(map(_node_of, tensors))


def _node_of(tensor: torch.Tensor) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view of another mode than that in which its base was written
        return None


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
