"""Points at which a graph may be cut for hooks, and the node that marks a cut after a tensor."""

from __future__ import annotations

import operator

from torch import fx

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break, Restart
from smelt.capture.core.interface import Interpreter, Tensors
from smelt.capture.tensors.torch_calls import RESHAPING
from smelt.capture.tensors.transform_node import PullbackCall
from smelt.graph.ir.meta import may_overlap
from smelt.graph.nodes.cut_points import EagerBoundary, Edge, boundaries, cuts, why_cut


def refuse_nested_cut(vm: Interpreter, what: str) -> None:
    """Require that the graph can be cut at this point, which is possible only between nodes of its outermost level.

    Raises:
        Break: the program is in a checkpoint, a transform or a branch, or it has computed gradients.
    """
    vm.tensors.refuse_cut(what)


def cut_after(vm: Interpreter, made: set[fx.Node], node: fx.Node) -> None:
    """Cut the graph after the last of the nodes `made`, which compute a tensor with the present node `node`."""
    graph = vm.tensors.graph
    last = next(each for each in reversed(graph.nodes) if each in made)
    while last.next.target is operator.getitem and (last.next.args[0] in (last, *last.args)):
        last = last.next  # all results of one node stay on the same side of the cut
    after = last.next
    while isinstance(after.target, EagerBoundary):
        if isinstance(after.target, Edge) and after.args[0] is node:
            return
        after = after.next
    with graph.inserting_after(last):
        edge = graph.call_function(Edge(), (node,))
    edge.meta["val"] = None
    edge.meta["at"] = vm.where()
    edge.meta["step"] = vm.step


_OBJECT_METHODS = RESHAPING | {"detach_", "requires_grad_"}
"""Methods that change a tensor object: they must run in the piece of the graph that makes the object."""


def refuse_separated_writes(vm: Interpreter) -> None:
    """Require that no cut separates a write from earlier tensors that share the memory and are used after the cut.

    Raises:
        Restart: a cut separates such a write, and capture stops before the operation that causes the cut; or a cut
            separates a call of `torch.func.vjp` from a call of its pullback, and capture stops before the call of
            `vjp`.
    """
    tensors = vm.tensors
    positions = {node: at for at, node in enumerate(tensors.graph.nodes)}
    _refuse_separated_pullbacks(tensors.graph, positions)
    for cut in boundaries(tensors.graph):
        if _separates_write(tensors, positions, positions[cut]):
            stop = Break(f"{why_cut(cut)}, before a write to a view", "a view and its base are in one piece of a graph")
            stop.at = cut.meta.get("at")
            raise Restart(cut.meta["step"], stop)


def _refuse_separated_pullbacks(graph: fx.Graph, positions: dict[fx.Node, int]) -> None:
    at_cuts = [positions[cut] for cut in cuts(graph)]
    for node, position in positions.items():
        if isinstance(node.target, PullbackCall) and isinstance(node.args[0], fx.Node):
            if any(positions[node.args[0]] < at < position for at in at_cuts):
                stop = Break("a cut between torch.func.vjp and its pullback", "one piece of a graph holds both")
                raise Restart(node.target.born, stop)


def _separates_write(tensors: Tensors, positions: dict[fx.Node, int], cut: int) -> bool:
    for node, position in positions.items():
        if position > cut and node.op == "call_method" and node.target in _OBJECT_METHODS:
            return True
    written = {
        storage
        for storage, writers in tensors.writers.items()
        if any(positions.get(writer, 0) > cut for writer in writers)
    }
    for node, tensor in tensors.made_tensors():
        view = tensor.storage_view
        if (
            id(view.storage) in written
            and positions.get(node, cut) < cut
            and any(positions[u] > cut for u in node.users)
        ):
            val = view.layout.val
            if view.parent is not None or may_overlap(val.shape, val.stride):
                return True
    return False
