"""Joint graph in; forward and backward graphs out. Saves all values that backward reads, and recomputes only views.

Values inside a `torch.utils.checkpoint` call are recomputed, except random numbers.

Eager saves the same values. The `aot_eager` backend uses this partition; the compiler itself uses `partition`, a
minimum cut.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import fx

from smelt.autograd.partition.extract import exchanged_late, extract
from smelt.autograd.partition.read_late import as_saved, copied, read_late
from smelt.autograd.partition.recompute import never_twice
from smelt.autograd.trace.functionalize import is_view_node
from smelt.autograd.trace.plan import Joint
from smelt.graph.ir.ancestry import ancestors, dependents
from smelt.graph.ir.gradient_marks import marks
from smelt.prims.table import PRIMS


def split(joint: Joint, module: fx.GraphModule | None = None) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """Returns the (forward, backward) graphs of a joint graph, or of `module`, the same graph with other operators.

    Backward is None when nothing is differentiable.

    Forward: primals (and seeds) in; the joint graph's forward outputs, then saved tensors, out.
    Backward: saved tensors, then tangents in; gradients out.
    """
    module = module or joint.module
    nodes = list(module.graph.nodes)
    (results,) = nodes[-1].args
    values, gradients, found = joint.split_results(results)
    value_metas, gradient_metas, found_metas = joint.split_results(nodes[-1].meta["val"])
    inputs = [n for n in nodes if n.op == "placeholder"]
    count = joint.num_primals + len(joint.seeds)
    if not joint.differentiable:
        return module, None
    last = len(inputs) - len(joint.sizes)
    tangents, sizes = inputs[count:last], inputs[last:]
    own = as_saved(nodes, inputs[:count], values)
    late = dependents(nodes, [*tangents, *own, *marks(module.graph), *exchanged_late(nodes)])
    needed = ancestors(gradients, among=late)
    saved = _operands(needed & late - own.keys(), late, nodes)
    saved = _without_views(_without_checkpointed(saved, nodes, late, values), nodes)
    saved += [g for g in dict.fromkeys(gradients) if g not in late and g not in saved]
    saved = _without_constants(saved, values)
    late_ones = read_late(own, needed, saved)
    drawn = [n for n in nodes if n.meta.get("random") and n not in late]
    handed = [*map(own.__getitem__, late_ones), *_copied_among(module, saved, copied(joint, inputs, values, own))]
    saved = [*late_ones, *saved]
    results = [*values, *handed, *found]
    metas = (*value_metas, *_vals(handed), *found_metas)
    forward = extract(module, [*inputs[:count], *sizes], results, metas, nodes, drawn=drawn)
    numbers = [*sizes, *found[: len(joint.reads)]]
    backward = extract(module, [*saved, *tangents, *numbers], gradients, gradient_metas, nodes)
    return forward, backward


def _operands(readers: set[fx.Node], late: set[fx.Node], nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the values that do not depend on tangents and that these nodes read, in graph order."""
    return sorted({n for node in readers for n in node.all_input_nodes if n not in late}, key=_order(nodes))


def _copied_among(module: fx.GraphModule, saved: Iterable[fx.Node], apart: set[fx.Node]) -> list[fx.Node]:
    return [_copy(module, n) if n in apart else n for n in saved]


def _copy(module: fx.GraphModule, node: fx.Node) -> fx.Node:
    with module.graph.inserting_before(module.graph.output_node()):
        copy = module.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta["val"] = PRIMS["clone"].meta(node.meta["val"])  # a copy has no gaps
    return copy


def _order(nodes: Sequence[fx.Node]) -> Callable[[fx.Node], int]:
    positions = {n: i for i, n in enumerate(nodes)}
    return positions.__getitem__


def _without_views(saved: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Replace each view by its base: the base has the version counter that the user's writes change, and serves all its
    views.
    """
    bases: dict[fx.Node, None] = {}
    for node in saved:
        while is_view_node(node):
            node = node.args[0]  # type: ignore[assignment]
        bases[node] = None
    return sorted(bases, key=_order(nodes))


def _without_constants(saved: Sequence[fx.Node], values: Sequence[object]) -> list[fx.Node]:
    """Drop derivatives that are computed only from constants: eager does not save them, so hooks on saved tensors must
    not see them."""
    results = {value for value in values if isinstance(value, fx.Node)}

    @functools.cache
    def is_constant(node: fx.Node) -> bool:
        if node.op != "call_function" or node in results or not node.meta.get("backward") or never_twice(node):
            return False
        return all(map(is_constant, node.all_input_nodes))

    return [node for node in saved if not is_constant(node)]


def _without_checkpointed(
    saved: Sequence[fx.Node], nodes: Sequence[fx.Node], late: set[fx.Node], values: Sequence[object]
) -> list[fx.Node]:
    """Replace the values inside a checkpointed region by the operands of the region."""
    results = {value for value in values if isinstance(value, fx.Node)}

    @functools.cache
    def is_inside(node: fx.Node) -> bool:
        region = node.meta.get("checkpoint")
        if node.op != "call_function" or node in results or never_twice(node):
            return False
        if node.meta.get("backward"):  # belongs to a derivative, but is independent of tangents
            return any(map(is_inside, node.all_input_nodes))
        if region is None:
            return False
        if node.target is operator.getitem and not is_inside(node.args[0]):  # type: ignore[arg-type]
            return False  # an item of a tuple: tuples are not saved
        forward = (user for user in node.users if user not in late and not user.meta.get("backward"))
        return all(user.meta.get("checkpoint") == region for user in forward)

    kept: set[fx.Node] = set()
    seen, stack = set(saved), list(saved)
    while stack:
        node = stack.pop()
        if not is_inside(node):
            kept.add(node)
            continue
        new = [n for n in node.all_input_nodes if n not in seen]
        seen.update(new)
        stack += new
    return sorted(kept, key=_order(nodes))


def _vals(nodes: Sequence[fx.Node]) -> tuple[object, ...]:
    return tuple(n.meta["val"] for n in nodes)
