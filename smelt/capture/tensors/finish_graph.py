"""Completes a captured graph: drops unused nodes, and requires that arguments of a graph with writes share no
memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.class_tables import isinstance
from smelt.base.torch_private import is_view
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Ambient
from smelt.capture.core.sources import PROLOGUE
from smelt.capture.guards.questions import share_no_memory, show_their_bases
from smelt.capture.tensors.graph_module import CapturedGraph
from smelt.capture.tensors.tensors import Input, Tensors
from smelt.capture.tensors.writes import disjoint_groups
from smelt.graph.ir.meta import is_opaque, meta_of
from smelt.graph.ir.schema import is_collective
from smelt.graph.nodes.cut_points import EagerBoundary, remove_idle_boundaries
from smelt.graph.nodes.eager_call import EagerCall
from smelt.graph.nodes.modes import MODE_CHANGES
from smelt.graph.trace.overlap import cover_of, overlapping
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.real import Real
from smelt.shapes.size import Size


def finish_graph(
    tensors: Any, outputs: Sequence[TraceTensor], ambient: Ambient
) -> tuple[fx.GraphModule | None, list[Input], int]:
    """Complete the graph; returns (module or None if nothing is computed, inputs that the graph uses, number of
    operations).
    """
    if tensors.contains_made_leaf(outputs):
        raise Break(
            "a tensor that was set to require gradients leaves the frame", "its gradient would not be seen outside"
        )
    tensors.speculation.finish()
    ambient.close(tensors.graph)
    outputs = [*outputs, *_roots_of_views(tensors, outputs)]
    result = tensors.graph.output(tuple(tensors.nodes[id(t)] for t in outputs))
    result.meta["val"] = tuple(meta_of(t) for t in outputs)
    prune(tensors)
    remove_idle_boundaries(tensors.graph)
    ops = sum(map(_is_operation, tensors.graph.nodes))
    if not ops:
        return None, [], 0
    every, inputs = tensors.inputs, _drop_unused(tensors)
    if tensors.mutated:
        given = [i for i in inputs if isinstance(i.tensor, torch.Tensor) and i.source.kind != PROLOGUE]
        tensors.vm.guards.all_different(i.source for i in given)
        _require_separate_memory(tensors, every if _makes_inputs_require_grad(tensors, inputs) else inputs)
    return CapturedGraph({}, tensors.graph), inputs, ops


def _roots_of_views(tensors: Tensors, outputs: Sequence[TraceTensor]) -> list[TraceTensor]:
    """Roots of results that are views, if the program has read a storage offset in them; as outputs the roots keep
    their layout.
    """
    shown, returned = {id(t.storage_view.storage) for t in outputs}, {id(t) for t in outputs}
    return [root for key, root in tensors.kept_roots.items() if key in shown and id(root) not in returned]


def _makes_inputs_require_grad(tensors: Tensors, inputs: Sequence[Input]) -> bool:
    """Whether a write makes an input require gradients. All tensors that share the input's memory then require
    gradients too, which the program may observe.
    """
    traced = (tensors.traced.get(id(i.tensor)) for i in inputs if isinstance(i.tensor, torch.Tensor))
    return any(t is not None and t.requires_grad and not tensors.real[id(t)].requires_grad for t in traced)


def _by_owner(inputs: Sequence[Input]) -> tuple[list[Input], list[Input]]:
    """Split the inputs into (inputs from callers, inputs that are members of modules)."""
    members = [i for i in inputs if i.source.kind == native.MODULE_MEMBER]
    return [i for i in inputs if i.source.kind != native.MODULE_MEMBER], members


def _drop_unused(tensors: Tensors) -> list[Input]:
    """Erase the unused inputs' nodes; returns the inputs that the graph uses."""
    used = [i for i in tensors.inputs if i.node.users]
    for unused in (i.node for i in tensors.inputs if not i.node.users):
        tensors.graph.erase_node(unused)
    return used


def _require_separate_memory(tensors: Tensors, inputs: list[Input]) -> None:
    """Require, now and by guards, that the arguments of a graph that writes to one of them share no memory.

    Raises:
        Break: they share memory now.
    """
    tensors_given = (i for i in inputs if i.source.kind != PROLOGUE and isinstance(i.tensor, torch.Tensor))
    real = [i for i in tensors_given if not is_opaque(i.tensor)]
    arguments, members = _by_owner(real)
    written = [i for i in real if id(tensors.traced[id(i.tensor)].storage_view.storage) in tensors.writers]
    written_members = _by_owner(written)[1]
    if written_members:
        _check_members(members, written_members)
    if not written or not arguments:
        return
    _require_views_in_place(tensors, arguments)
    # Members that share memory are views of one another permanently. An argument may alias a member at some later call.
    for beside in disjoint_groups(written_members if len(written_members) == len(written) else members) or [[]]:
        group = [*arguments, *beside]
        if len(group) < 2:
            continue
        _require_no_overlap(tensors, group)


def _require_views_in_place(tensors: Tensors, arguments: Sequence[Input]) -> None:
    """Require that views among the arguments share their bases' memory: a write to either changes the history of both.

    Raises:
        Break: a view was assigned other memory (`.data`), which the graph would treat as another tensor.
    """
    views = [i for i in arguments if i.tensor.requires_grad and is_view(i.tensor)]
    if not views:
        return
    if not show_their_bases(*(i.tensor for i in views)):
        raise Break("an argument is written, or its view, which was given other memory", "one history, two memories")
    tensors.vm.guards.python(show_their_bases, [i.source for i in views])


def _require_no_overlap(tensors: Tensors, group: Sequence[Input]) -> None:
    if not share_no_memory(*(i.tensor for i in group)):
        raise Break("an argument is written that shares memory with another one", "a graph has no such aliases")
    tensors.vm.guards.python(share_no_memory, [i.source for i in group], native.SHORT_DISJOINT)


def _check_members(members: list[Input], written: list[Input]) -> None:
    """Require that one of the module members that share written memory covers the others, so that the graph can
    represent them as its views.

    Raises:
        Break: no member covers the others.
    """
    for group in overlapping([i.tensor for i in members]):
        involved = [members[i] for i in group]
        if not any(i is one for i in involved for one in written):
            continue
        unclear = any(i.tensor.requires_grad or i.node.meta["val"].symbolic for i in involved)
        if unclear or cover_of([i.tensor for i in involved]) is None:
            raise Break("members of modules share memory, one of them is written", "a graph has no such aliases")


def prune(tensors: Tensors) -> None:
    """Drop unused nodes and empty mode regions. Nodes that draw random numbers stay, and collectives."""
    gone: set[fx.Node] = set()
    for node in reversed(list(tensors.graph.nodes)):
        if node in gone or node.op in ("placeholder", "output") or node.users or node in tensors.mutated:
            continue
        if _acts(node) or any(node in kept for kept in (tensors.drawing, tensors.checks, tensors.looking)):
            continue
        to_erase = [node]
        if node.target in MODE_CHANGES:
            entered = node.args[0] if isinstance(node.args[0], fx.Node) else None
            if entered is None or entered.next is not node:
                continue
            to_erase.append(entered)
        for each in to_erase:
            tensors.graph.erase_node(each)
            gone.add(each)


def _acts(node: fx.Node) -> bool:
    """Whether Python of the program runs at the node, or other processes take part in it."""
    if isinstance(node.target, EagerBoundary):
        return not isinstance(node.target, EagerCall)
    return is_collective(node.target)


def _is_operation(node: fx.Node) -> bool:
    """Whether a node is counted as an operation: it is not an input, a mode switch or the unpacking of a tuple."""
    if node.op not in ("call_function", "call_method") or node.target in MODE_CHANGES:
        return False
    if isinstance(node.meta.get("val"), (Size, Real)) or isinstance(node.target, EagerBoundary):
        return isinstance(node.target, EagerCall)
    if node.target is not operator.getitem:
        return True
    owner = node.args[0]
    return not (isinstance(owner, fx.Node) and isinstance(owner.meta.get("val"), tuple))
