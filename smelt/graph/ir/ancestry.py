"""Finds ancestors and dependents of nodes in an fx graph."""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import fx


def dependents(nodes: Iterable[fx.Node], roots: Iterable[fx.Node]) -> set[fx.Node]:
    """Returns `roots` and every node whose value depends on one of them; `nodes` in topological order."""
    found = set(roots)
    for node in nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def ancestors(roots: Iterable[fx.Node], among: Container[fx.Node] | None = None) -> set[fx.Node]:
    """Returns `roots` and every node from which they are computed; with `among`, only along those nodes."""
    found: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(n for n in node.all_input_nodes if among is None or n in among)
    return found
