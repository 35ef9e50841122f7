"""Which results lead to which inputs, as autograd sees it: also where the gradient is a constant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx


def without_tangents(graph: fx.Graph, nodes: Collection[fx.Node]) -> set[fx.Node]:
    """Those of `nodes` that need none of the placeholders named after tangents."""
    needing: set[fx.Node] = set()
    for node in graph.nodes:
        own = node.op == "placeholder" and node.name.startswith("tangents_")
        if own or not needing.isdisjoint(node.all_input_nodes):
            needing.add(node)
    return set(nodes) - needing


def heads_of(heads: Sequence[torch.Tensor], leaves: Mapping[int, torch.Tensor]) -> dict[int, frozenset[int]]:
    """For each leaf, by its key, the places of the heads whose history leads to it."""
    found: dict[int, set[int]] = {key: set() for key in leaves}
    keys = {id(leaf): key for key, leaf in leaves.items()}
    for place, head in enumerate(heads):
        seen: set[Any] = set()
        open_: list[Any] = [head.grad_fn]
        while open_:
            node = open_.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            key = keys.get(id(getattr(node, "variable", None)))
            if key is not None:
                found[key].add(place)
            open_ += [each for each, _ in node.next_functions]
    return {key: frozenset(places) for key, places in found.items()}
