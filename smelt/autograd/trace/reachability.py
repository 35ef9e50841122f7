"""Finds, for each input, the results from which autograd computes its gradient, even if that gradient is a constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def heads_of(heads: Sequence[torch.Tensor], leaves: Mapping[int, torch.Tensor]) -> dict[int, frozenset[int]]:
    """Returns for each leaf (by its key in `leaves`) the positions of the heads that give it a gradient, possibly of
    zeros.

    A built-in autograd node returns gradients only if it receives one. The node of a `torch.autograd.Function` returns
    gradients whenever the engine reaches it, because the engine passes zeros for absent gradients.
    """
    keys = {id(leaf): key for key, leaf in leaves.items()}
    found: dict[int, int] = dict.fromkeys(leaves, 0)
    order = in_order(heads)
    visited = dict.fromkeys(order, 0)
    masks = dict.fromkeys(order, 0)
    for position, head in enumerate(heads):
        if head.grad_fn is not None:
            visited[head.grad_fn] |= 1 << position
            masks[head.grad_fn] |= 1 << position
    for node in order:
        key = keys.get(id(getattr(node, "variable", None)))
        if key is not None:
            found[key] |= masks[node]
        given = masks if function_of(node) is None else visited
        for each, _ in order[node]:
            if each is not None:
                visited[each] |= visited[node]
                masks[each] |= given[node]
    return {key: frozenset(k for k in range(len(heads)) if mask >> k & 1) for key, mask in found.items()}


def in_order(heads: Sequence[torch.Tensor]) -> dict[Any, Sequence[tuple[Any, int]]]:
    """Returns the autograd nodes reachable from the heads, in topological order, each with its `next_functions`."""
    edges: dict[Any, Sequence[tuple[Any, int]]] = {}
    order: list[Any] = []
    for head in heads:
        open_: list[tuple[Any, bool]] = [(head.grad_fn, False)]
        while open_:
            node, done = open_.pop()
            if done:
                order.append(node)
            elif node is not None and node not in edges:
                edges[node] = following = node.next_functions
                open_.append((node, True))
                open_ += [(each, False) for each, _ in following]
    return {node: edges[node] for node in reversed(order)}


def function_of(node: Any) -> type | None:
    """Returns the user's `torch.autograd.Function` that created this autograd node; None for other nodes."""
    function: type | None = getattr(type(node), "_forward_cls", None)
    return None if getattr(function, "like_operator", False) else function


def comes_through_function(out: torch.Tensor, base: torch.Tensor, steps: int) -> bool:
    """Whether one of the `steps` view steps from `base` to `out` was recorded by a `torch.autograd.Function`.

    If so, recreating `out` from `base` by view operators would give it the derivative of these operators instead of the
    function's.
    """
    node, output_nr, end = out.grad_fn, out.output_nr, base.grad_fn
    for _ in range(steps):
        if node is not None and node is end:  # both are results of one function, or views of them
            return hasattr(type(node), "_forward_cls") and output_nr != base.output_nr
        if node is None or "Copy" in node.name():  # written in place: the history is that of the written value
            return False
        if hasattr(type(node), "_forward_cls"):
            return True
        following = [(before, k) for before, k in node.next_functions if before is not None]
        node, output_nr = following[0] if len(following) == 1 else (None, 0)
    return node is not None and node is end and hasattr(type(node), "_forward_cls") and output_nr != base.output_nr
