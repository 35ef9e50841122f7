"""Which results lead to which inputs, as autograd sees it: also where the gradient is a constant."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import fx


def tangents_of(graph: fx.Graph, tangents: Sequence[str]) -> dict[fx.Node, frozenset[int]]:
    """For each node, the places of the tangents (names of placeholders) that its value depends on."""
    places = {name: frozenset({place}) for place, name in enumerate(tangents)}
    nothing: frozenset[int] = frozenset()
    found: dict[fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        own = places.get(node.name, nothing) if node.op == "placeholder" else nothing
        below = {found[n] for n in node.all_input_nodes if found[n] is not nothing}
        found[node] = next(iter(below)) if len(below) == 1 and not own else own.union(*below) if below else own
    return found


def heads_of(
    heads: Sequence[torch.Tensor], leaves: Mapping[int, torch.Tensor], but: Container[type] = ()
) -> dict[int, frozenset[int]]:
    """For each leaf, by its key, the places of the heads whose history leads to it.

    Args:
        but: classes of `torch.autograd.Function` through which no way is counted.
    """
    keys = {id(leaf): key for key, leaf in leaves.items()}
    found: dict[int, int] = dict.fromkeys(leaves, 0)
    masks: dict[Any, int] = {}
    order: list[Any] = []  # each node after all that come before it in history
    for place, head in enumerate(heads):
        open_: list[tuple[Any, bool]] = [(head.grad_fn, False)]
        while open_:
            node, done = open_.pop()
            if done:
                order.append(node)
            elif node is not None and node not in masks:
                masks[node] = 0
                open_.append((node, True))
                open_ += [(each, False) for each, _ in node.next_functions]
        if head.grad_fn is not None:
            masks[head.grad_fn] |= 1 << place
    for node in reversed(order):
        if but and getattr(type(node), "_forward_cls", None) in but:
            continue
        key = keys.get(id(getattr(node, "variable", None)))
        if key is not None:
            found[key] |= masks[node]
        for each, _ in node.next_functions:
            if each is not None:
                masks[each] |= masks[node]
    return {key: frozenset(k for k in range(len(heads)) if mask >> k & 1) for key, mask in found.items()}


def comes_through_function(out: torch.Tensor, base: torch.Tensor, steps: int) -> bool:
    """Whether `out`, a view of `base` by some steps, has its history from a `torch.autograd.Function` among them.

    Taken again from `base`, the views would have the derivatives of views and not that of the function.
    """
    node, end = out.grad_fn, base.grad_fn
    if steps and node is end and hasattr(type(node), "_forward_cls"):  # both are results of one function
        return True
    for _ in range(steps):
        if node is None or node is end or "Copy" in node.name():  # written: the history is that of what was written
            return False
        if hasattr(type(node), "_forward_cls"):
            return True
        following = [before for before, _ in node.next_functions if before is not None]
        node = following[0] if len(following) == 1 else None
    return False


def forbidden(out: torch.Tensor) -> str | None:
    """What autograd says to whoever uses a view that a `torch.autograd.Function` returned, whose memory was written."""
    try:
        _ = out.grad_fn
    except RuntimeError as error:
        return str(error) if "custom Function" in str(error) else None
    return None
