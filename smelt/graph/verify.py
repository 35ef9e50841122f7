"""Invariants of graphs between two stages; a violation names the node.

The pipeline calls `verified` after each pass that returns a graph, in strict mode (SMELT_STRICT).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.errors import SmeltError
from smelt.base.options import environment
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.gradient_marks import GradientMark
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.schema import Kind, op_info
from smelt.graph.metadata_checks import not_derived
from smelt.shapes.real import Real
from smelt.shapes.size import Size, known_equal

Rule = Callable[[fx.Node], str | None]


class InvalidGraph(SmeltError):
    """Raised when a stage made a graph that violates an invariant of its level."""


def verify(gm: fx.GraphModule, *, stage: str) -> None:
    """Check the invariants of a level: "torch", "joint" (functional ATen) or "prims".

    Raises:
        InvalidGraph: a node breaks a rule; the message names the first such node, and the rule.
    """
    if stage not in STAGES:
        raise InvalidGraph(f"unknown stage {stage!r}", hint=f"one of {', '.join(STAGES)}")
    gm.graph.lint()
    nodes = list(gm.graph.nodes)
    problem = _shape_of_graph(nodes)
    if problem is not None:
        raise InvalidGraph(f"{stage} graph: {problem}")
    for node in nodes:
        for rule in STAGES[stage]:
            why = rule(node)
            if why is not None:
                raise InvalidGraph(f"{stage} graph: node {node.format_node()}", why=why)


def verified(gm: fx.GraphModule, stage: str) -> fx.GraphModule:
    """Returns the graph, verified in strict mode."""
    if environment().verify:
        verify(gm, stage=stage)
    return gm


def _shape_of_graph(nodes: Sequence[fx.Node]) -> str | None:
    if not nodes or nodes[-1].op != "output":
        return "the last node is not the output"
    kinds = [n.op for n in nodes]
    if "placeholder" in kinds[kinds.count("placeholder") :]:
        return "a placeholder comes after other nodes"
    if kinds.count("output") != 1:
        return "more than one output"
    return None


# -- rules: None, or the violation ---------------------------------------------------------------------------------


def _has_meta(node: fx.Node) -> str | None:
    if node.op == "output":
        return None
    return None if "val" in node.meta else 'it has no meta["val"]'


def _tensor_meta(node: fx.Node) -> str | None:
    if node.op == "output":
        return None
    return _bad_val(node.meta["val"])


def _bad_val(val: Any) -> str | None:
    match val:
        case TensorMeta(shape, _, stride):
            return None if len(shape) == len(stride) else f"shape {shape} and stride {stride} have different lengths"
        case tuple() | list():
            return next(filter(None, map(_bad_val, val)), None)
        case int() | float() | bool() | None | Size() | Real():
            return None
    return f'meta["val"] is {val!r}, neither TensorMeta, nor a tuple of them, nor a number'


def _flat_output(node: fx.Node) -> str | None:
    if node.op != "output":
        return None
    (results,) = node.args
    if not isinstance(results, (tuple, list)):
        return "the output is not a flat tuple"
    if not all(r is None or isinstance(r, fx.Node) for r in results):
        return "an output is not a node"
    vals = node.meta.get("val")
    if vals is None or len(vals) != len(results):
        return 'meta["val"] does not name one value for each output'
    for result, val in zip(results, vals, strict=True):
        if result is None or not isinstance(val, TensorMeta):
            continue
        have = result.meta["val"]
        if not isinstance(have, TensorMeta) or have.dtype is not val.dtype or not _fits(have, val):
            return f"output {result.name} is {have}, promised {val}"
    return None


def _fits(have: TensorMeta, val: TensorMeta) -> bool:
    return len(have.shape) == len(val.shape) and all(map(known_equal, have.shape, val.shape))


def _known_op(node: fx.Node) -> str | None:
    if node.op in ("placeholder", "get_attr", "output"):
        return None
    if node.op != "call_function":
        return f"a {node.op} node"
    if node.target is operator.getitem:
        return _getitem(node)
    return None


def _getitem(node: fx.Node) -> str | None:
    source, index = node.args
    vals = source.meta["val"] if isinstance(source, fx.Node) else None
    if not isinstance(vals, (tuple, list)) or not isinstance(index, int) or index >= len(vals):
        return "getitem of something that has no such result"
    return None if vals[index] == node.meta["val"] else f"its meta differs from its source's {vals[index]}"


def _is_number(node: fx.Node) -> bool:
    """Whether the node reads or checks a size or number, for which there are no operators on tensors."""
    return not isinstance(node.meta["val"], (TensorMeta, tuple, list))


def _functional_aten(node: fx.Node) -> str | None:
    if node.op != "call_function" or node.target is operator.getitem or _is_number(node):
        return None
    if isinstance(node.target, GradientMark):
        return None
    if not isinstance(node.target, OpOverload):
        return "its target is no ATen operator"
    info = op_info(node.target)
    if info.kind is Kind.WRITE:
        return "it writes to its arguments"
    if info.composite:
        return "it is only a recipe over other operators"
    return None


def _random_is_marked(node: fx.Node) -> str | None:
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    if node.meta.get("random") and torch.Tag.nondeterministic_seeded not in node.target.tags:
        return "marked random, but it draws nothing"
    return None


def _prim(node: fx.Node) -> str | None:
    """Returns the violation if the target is neither a prim nor an ATen operator that runs in eager, else None."""
    if node.op != "call_function" or node.target is operator.getitem or _is_number(node):
        return None
    if isinstance(node.target, OpOverload):
        return "it writes to its arguments" if op_info(node.target).kind is Kind.WRITE else None
    if isinstance(node.target, GradientMark):
        return None
    return None if getattr(node.target, "__module__", "") == "smelt.prims.ops" else "its target is no prim"


_VALUES = (_has_meta, _tensor_meta, _known_op, _flat_output, not_derived)

STAGES: dict[str, tuple[Rule, ...]] = {
    "torch": (),
    "joint": (*_VALUES, _functional_aten, _random_is_marked),
    "prims": (*_VALUES, _prim),
}
"""For each level, the rules of its graphs."""
