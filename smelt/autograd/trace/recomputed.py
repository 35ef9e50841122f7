"""`torch.utils.checkpoint` calls, recomputed in the backward from the inputs as they are when it runs.

In the backward, eager runs such a call again and reads the memory that the inputs have by then (`x.data = y` may have
replaced it). Values inside the call that derivative formulas read are therefore recorded a second time, in the
backward; values from outside the call are those of the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import fx

from smelt.graph.ir.storage_view import StorageView


class Recomputed:
    """The nodes of `checkpoint` calls that depend on inputs which the backward reads anew.

    Args:
        nodes: the nodes of the forward, in order.
        late: for each input, the node of its value when the backward runs.
        append_like: function; `append_like(node, replace)` appends a copy of `node` with each operand replaced by
            `replace`.

    The random numbers of a call are not drawn again: the backward uses those of the forward.
    """

    def __init__(
        self,
        nodes: Iterable[fx.Node],
        late: Mapping[fx.Node, fx.Node],
        append_like: Callable[[fx.Node, Callable[[fx.Node], fx.Node]], fx.Node],
    ) -> None:
        self._append_like = append_like
        self._made = dict(late)
        self._stale: set[fx.Node] = set()
        for node in nodes:
            region = node.meta.get("checkpoint")
            if region is None or node.op != "call_function" or node.meta.get("random"):
                continue
            if any(n in late or (n in self._stale and n.meta["checkpoint"] == region) for n in node.all_input_nodes):
                self._stale.add(node)

    def __bool__(self) -> bool:
        return bool(self._stale)

    def of(self, node: fx.Node) -> fx.Node:
        """Returns the node of the call's second run that corresponds to `node`; it is created when it is first read."""
        if node not in self._stale:
            return node
        stack = [node]
        while stack:
            waiting = [n for n in stack[-1].all_input_nodes if self._is_inside(n, stack[-1]) and n not in self._made]
            if waiting:
                stack.extend(waiting)
                continue
            one = stack.pop()
            if one not in self._made:
                self._made[one] = self._append_like(one, lambda n, one=one: self._operand(n, one))  # type: ignore[misc]
        return self._made[node]

    def _is_inside(self, operand: fx.Node, user: fx.Node) -> bool:
        return operand in self._stale and operand.meta["checkpoint"] == user.meta["checkpoint"]

    def _operand(self, operand: fx.Node, user: fx.Node) -> fx.Node:
        if operand in self._stale and not self._is_inside(operand, user):
            return operand
        return self._made.get(operand, operand)


def is_recomputed(view: StorageView) -> bool:
    """Whether a `checkpoint` call computes the view, and so recomputes it from its inputs when the backward runs."""
    return view.node is not None and "checkpoint" in view.node.meta
