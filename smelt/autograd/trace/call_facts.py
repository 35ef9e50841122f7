"""Joint graph in; facts that follow from its calls out: the inputs that gradients depend on, the devices that draw."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from smelt.autograd.trace.plan import CallFacts, Joint
from smelt.autograd.trace.rng import drawing_devices, generator_devices

aten = torch.ops.aten


def call_facts(joint: Joint) -> CallFacts:
    """Returns all facts about a joint graph."""
    devices = drawing_devices(joint.module.graph), generator_devices(joint)
    return CallFacts(needed(joint), computed_from(joint), recomputes(joint), *devices)


def recomputes(joint: Joint) -> bool:
    """Whether nodes of the graph are inside `torch.utils.checkpoint`, which eager runs twice."""
    if joint.facts is not None:
        return joint.facts.recomputes
    return any("checkpoint" in node.meta for node in joint.module.graph.nodes)


def needed(joint: Joint) -> frozenset[int]:
    """Returns the positions of the primals on whose values the gradients depend."""
    return joint.facts.needed if joint.facts is not None else _reached(joint, lambda node: False)


def computed_from(joint: Joint) -> frozenset[int]:
    """Returns the positions of the primals of `needed` whose values at the forward matter."""
    if joint.facts is not None:
        return joint.facts.computed_from
    return _reached(joint, lambda node: node.meta.get("as_saved", "?")[0] in ("input", "alias"))


def _reached(joint: Joint, is_end: Callable[[fx.Node], bool]) -> frozenset[int]:
    """Returns the primals on which the gradients depend through nodes for which `is_end` is false; found in one pass
    from the last node.
    """
    graph = joint.module.graph
    output: Any = graph.output_node().args[0]
    seen = {node for node in joint.split_results(output)[1] if isinstance(node, fx.Node)}
    for node in reversed(graph.nodes):
        if node in seen and node.op != "placeholder" and not is_end(node):
            seen.update(_depends_on(node))
    primals = [node for node in graph.nodes if node.op == "placeholder"][: joint.num_primals]
    return frozenset(i for i, node in enumerate(primals) if node in seen)


def _depends_on(node: fx.Node) -> list[fx.Node]:
    """Returns the operands on whose values this node depends. In training, results of batch norm do not depend on the
    old running statistics, apart from the new ones.
    """
    if node.target is operator.getitem and node.args[1] in (3, 4) and _is_batch_norm(node.args[0]):
        return [node.all_input_nodes[0], *node.all_input_nodes[0].all_input_nodes]
    if _is_batch_norm(node):
        return [arg for arg in node.args[:3] if isinstance(arg, fx.Node)]
    return node.all_input_nodes


def _is_batch_norm(node: Any) -> bool:
    target = aten._native_batch_norm_legit_functional.default
    return isinstance(node, fx.Node) and node.target is target and bool(node.args[5])
