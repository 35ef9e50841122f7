"""Side effects of functions under `torch.utils.checkpoint`: in eager they occur a second time in the backward.

A graph only recomputes values. Therefore a `checkpoint` call whose function also writes is made in eager, between two
graphs, and its function is captured separately, for both runs. The same holds for a function that draws random numbers
that differ in the recomputation. A checkpoint that is not reentrant stops its recomputation when the last saved tensor
has been recomputed. Captured code does not stop early; if that would make a difference, the function is not captured.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx

from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Interpreter
from smelt.capture.python.snapshot import Snapshot
from smelt.graph.nodes.engine_nodes import saved_by
from smelt.graph.trace.trace import TraceTensor


class CheckpointEffects(Break):
    """A checkpoint whose function has side effects.

    Attributes:
        captured: whether the function may be captured separately.
    """

    def __init__(self, what: str, captured: bool) -> None:
        super().__init__(f"checkpoint of a function that {what}", "it does so once more while gradients are computed")
        self.captured = captured


@contextmanager
def recomputed_region(vm: Interpreter, once: bool, stops_early: bool, redraws: bool) -> Iterator[None]:
    """Mark the nodes of a function that `checkpoint` calls, which is interpreted inside this context.

    Args:
        once: whether the function is never recomputed.
        stops_early: whether the recomputation stops at the last saved tensor.
        redraws: whether the recomputation draws other random numbers (`preserve_rng_state=False`).

    Raises:
        CheckpointEffects: the function has side effects or draws anew, and gradients may be computed through it.
    """
    tensors, twice = vm.tensors, not once and torch.is_grad_enabled()
    if tensors.region is not None:  # the outermost checkpoint also marks the nodes of nested ones
        before = _last_node(tensors.graph)
        yield
        if twice and redraws is not tensors.redraws:
            tensors.drawing_otherwise |= tensors.drawing.intersection(_added(tensors.graph, before))
        return
    outside = _OutsideState(vm) if twice else None
    tensors.region, tensors.redraws = next(_regions), redraws
    try:
        yield
    finally:
        tensors.region = None
    if outside is not None:
        outside.check(stops_early, redraws)


def _last_node(graph: fx.Graph) -> fx.Node | None:
    return next((n for n in reversed(graph.nodes) if n.op != "placeholder"), None)


def _added(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    """The nodes that were added after `last`, latest first."""
    added = itertools.takewhile(lambda node: node is not last, reversed(graph.nodes))
    return [node for node in added if node.op != "placeholder"]


_regions = itertools.count()


class _OutsideState:
    """A snapshot of the state outside of a function before the function is interpreted."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm, self.tensors = vm, vm.tensors
        roots = [value for frame in vm.frames for value in (*frame.locals, *frame.stack, frame.kw_names)]
        self.before = Snapshot(vm, roots)
        self.last = _last_node(self.tensors.graph)

    def check(self, stops_early: bool, redraws: bool) -> None:
        """Check that the function, which has returned, may be recomputed in the graph.

        Raises:
            CheckpointEffects: see `recomputed_region`.
        """
        nodes = _added(self.tensors.graph, self.last)
        if not any(map(self._needs_gradient, {each for node in nodes for each in (node, *node.all_input_nodes)})):
            return
        if self.before.changed():
            raise CheckpointEffects("changes an object", captured=not stops_early)
        writers = self._writers(set(nodes))
        if writers and not (self.vm.effects.graph_repeats_writes and stops_early):
            raise CheckpointEffects(
                "writes to a tensor", captured=not stops_early or self._recomputes_all(nodes, writers)
            )
        if self.tensors.drawing_otherwise.intersection(nodes):
            raise CheckpointEffects(
                "draws random numbers, in a checkpoint inside with another preserve_rng_state,", False
            )
        drawing = self.tensors.drawing.intersection(nodes) if redraws else set()
        if drawing:
            captured = not stops_early or self._recomputes_all(nodes, drawing)
            raise CheckpointEffects("draws random numbers, other ones each time,", captured)

    def _writers(self, nodes: set[fx.Node]) -> set[fx.Node]:
        """The nodes of the function that write to tensors which existed before."""
        if nodes.isdisjoint(self.tensors.mutated):
            return set()
        older = {id(t.storage_view.storage) for node, t in self.tensors.made_tensors() if node not in nodes}
        written = (writers for storage, writers in self.tensors.writers.items() if storage in older)
        return nodes.intersection(itertools.chain.from_iterable(written))

    def _recomputes_all(self, nodes: Sequence[fx.Node], acting: set[fx.Node]) -> bool:
        """Whether a recomputation that stops early runs all nodes in `acting`: none of them follows the last node that
        saves a tensor; `nodes` are in reverse order.
        """
        last = next(node for node in nodes if node in acting or self._saves(node))
        return self._saves(last)

    def _needs_gradient(self, node: fx.Node) -> bool:
        value = self.tensors.made.get(node)
        return type(value) is TraceTensor and value.requires_grad

    def _saves(self, node: fx.Node) -> bool:
        """Whether autograd saves a tensor for the derivative of a tensor that the node makes."""
        made = [node] if node in self.tensors.made else [each for each in node.users if each.target is operator.getitem]
        values = [self.tensors.made[each] for each in made if self._needs_gradient(each)]
        return any(True for value in values if value.grad_fn is not None for _ in saved_by(value.grad_fn))
