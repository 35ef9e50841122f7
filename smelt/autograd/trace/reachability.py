"""Which results lead to which inputs, as autograd sees it: also where the gradient is a constant."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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
    heads: Sequence[torch.Tensor],
    leaves: Mapping[int, torch.Tensor],
    but: Container[type] = (),
    given: Mapping[Any, Sequence[bool]] | None = None,
) -> dict[int, frozenset[int]]:
    """For each leaf, by its key, the places of the heads whose history gives it a gradient, be it zeros.

    A node of PyTorch's own gives gradients where it gets one; that of a `torch.autograd.Function` wherever the engine
    comes to it, for it is given zeros.

    Args:
        but: classes of `torch.autograd.Function` through which no way is counted.
        given: of nodes of such functions, to which of the following nodes they give a gradient; others to all.
    """
    keys = {id(leaf): key for key, leaf in leaves.items()}
    found: dict[int, int] = dict.fromkeys(leaves, 0)
    order = _in_order(heads)
    visited = dict.fromkeys(order, 0)
    masks = dict.fromkeys(order, 0)
    for place, head in enumerate(heads):
        if head.grad_fn is not None:
            visited[head.grad_fn] |= 1 << place
            masks[head.grad_fn] |= 1 << place
    for node in order:
        key = keys.get(id(getattr(node, "variable", None)))
        if key is not None:
            found[key] |= masks[node]
        function = _function_of(node)
        gives = given.get(node) if given else None
        for k, (each, _) in enumerate(node.next_functions):
            if each is None:
                continue
            visited[each] |= visited[node]
            if function is None:
                masks[each] |= masks[node]
            elif function not in but and (gives is None or gives[k]):
                masks[each] |= visited[node]
    return {key: frozenset(k for k in range(len(heads)) if mask >> k & 1) for key, mask in found.items()}


def _in_order(heads: Sequence[torch.Tensor]) -> list[Any]:
    """The nodes below the heads, each before all that it leads to."""
    seen: set[Any] = set()
    order: list[Any] = []
    for head in heads:
        open_: list[tuple[Any, bool]] = [(head.grad_fn, False)]
        while open_:
            node, done = open_.pop()
            if done:
                order.append(node)
            elif node is not None and node not in seen:
                seen.add(node)
                open_.append((node, True))
                open_ += [(each, False) for each, _ in node.next_functions]
    return order[::-1]


@contextmanager
def functions_give(heads: Sequence[torch.Tensor]) -> Iterator[dict[Any, Sequence[bool]]]:
    """While gradients of the heads are computed: to which following nodes those of the program's functions give one."""
    found: dict[Any, Sequence[bool]] = {}
    nodes = [node for node in _in_order(heads) if _function_of(node) is not None]
    handles = [node.register_hook(partial(_note, found, node)) for node in nodes]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _function_of(node: Any) -> type | None:
    """The `torch.autograd.Function` of the program that a node comes from."""
    function: type | None = getattr(type(node), "_forward_cls", None)
    return None if getattr(function, "like_operator", False) else function


def _note(found: dict[Any, Sequence[bool]], node: Any, gradients: Sequence[torch.Tensor | None], _: Any) -> None:
    found[node] = [gradient is not None for gradient in gradients]


def comes_through_function(out: torch.Tensor, base: torch.Tensor, steps: int) -> bool:
    """Whether `out`, a view of `base` by some steps, has its history from a `torch.autograd.Function` among them.

    Taken again from `base`, the views would have the derivatives of views and not that of the function.
    """
    node, place, end = out.grad_fn, out.output_nr, base.grad_fn
    for _ in range(steps):
        if node is not None and node is end:  # two results of one function, or views of them
            return hasattr(type(node), "_forward_cls") and place != base.output_nr
        if node is None or "Copy" in node.name():  # written: the history is that of what was written
            return False
        if hasattr(type(node), "_forward_cls"):
            return True
        following = [(before, k) for before, k in node.next_functions if before is not None]
        node, place = following[0] if len(following) == 1 else (None, 0)
    return node is not None and node is end and hasattr(type(node), "_forward_cls") and place != base.output_nr


def forbidden(out: torch.Tensor) -> str | None:
    """What autograd says to whoever uses a view that a `torch.autograd.Function` returned, whose memory was written."""
    try:
        _ = out.grad_fn
    except RuntimeError as error:
        return str(error) if "custom Function" in str(error) else None
    return None
