"""Nodes of PyTorch's autograd graph, the tensors that they have saved, and whether these were freed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def nodes_below(heads: Iterable[Any]) -> Iterator[Any]:
    """Yields every node that is reachable from these nodes, once; None among them is ignored."""
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
    """Yields every node in the history of these tensors, once; none for a tensor whose history autograd refuses."""
    return nodes_below(map(_node_of, tensors))


def _node_of(tensor: torch.Tensor) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # the view was made in a mode other than that in which its base was written
        return None


def saved_by(node: Any) -> Iterator[Any]:
    """Yields the tensors that a node has saved, without those that were overwritten since."""
    kind: Any = type(node)
    if hasattr(kind, "_forward_cls"):  # a node of a Python function, which may keep tensors in any attribute
        yield from vars(node).values()
    for name in _names(kind):
        try:
            yield getattr(node, name)
        except RuntimeError:
            continue  # overwritten, or freed by a backward of the program


def is_backward_freed(node: Any) -> bool:
    """Whether a backward has freed the node's saved tensors, so that a second backward through it is an error."""
    kind: Any = type(node)
    for name in _names(kind):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if "second time" in str(error):
                return True
    return False


def _names(kind: type) -> tuple[str, ...]:
    """Returns the names of a node class's attributes for saved tensors; the attributes are not read, as that would
    specialize symbolic sizes.
    """
    return ("saved_tensors",) if hasattr(kind, "_forward_cls") else _raw_names(kind)


@functools.cache
def _raw_names(kind: type) -> tuple[str, ...]:
    """Returns the names of the raw attributes of a node class of PyTorch, which do not change."""
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))
