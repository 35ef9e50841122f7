"""Joint prim graph in; forward and backward prim graphs out. Chooses the values to save and to recompute.

For a whole training step, which has no separate backward program, `whole_step.py` chooses by the same costs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx
from torch.fx import Node

from smelt.autograd.partition.extract import exchanged_late, extract, nodes_among
from smelt.autograd.partition.min_cut import Cut
from smelt.autograd.partition.read_late import as_saved, copied, read_late
from smelt.autograd.partition.recompute import Costs, kind_of
from smelt.autograd.partition.whole_step import with_recomputation
from smelt.autograd.trace.joint import Joint
from smelt.base.options import Options
from smelt.graph.ir.ancestry import ancestors, dependents
from smelt.graph.ir.gradient_marks import marks
from smelt.graph.ir.meta import TensorMeta, is_dense
from smelt.prims.builder import meta_of_value
from smelt.prims.table import PRIMS, Kind, Prim


@dataclass(frozen=True)
class Saved:
    """One value that forward saves for backward.

    Attributes:
        kind: whether it is an input of forward, one of its outputs for the caller, or an intermediate.
            index: its position among the inputs or outputs; -1 for an intermediate.
        name: the node's name.
    """

    kind: Literal["input", "output", "intermediate"]
    index: int
    name: str


def partition(module: fx.GraphModule, joint: Joint, options: Options) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """Returns (forward, backward); backward is None when nothing is differentiable: then forward may be a whole
    training step.

    Forward: primals (and seeds) in; the joint graph's forward outputs, then the saved values, out. Its `meta["saved"]`
    has a Saved for each of these. Backward: saved values, then tangents in; gradients out.

    Args:
        module: the prim graph of the joint graph: same placeholders, same outputs.
        joint: the plan, which has the number of outputs that belong to forward.
        options: `activation_memory_budget` 1 weighs speed and memory; less recomputes more, down to 0, which keeps only
            inputs and values that cannot be computed twice.
    """
    if not joint.differentiable:
        return with_recomputation(module, options.activation_memory_budget), None
    split = _Split(module, joint)
    saved = split.choose(options.activation_memory_budget)
    return split.forward(saved), split.backward(saved)


class _Split:
    """The joint graph's nodes, classified for the minimum cut."""

    def __init__(self, module: fx.GraphModule, joint: Joint) -> None:
        self.module = module
        self.nodes: list[Node] = list(module.graph.nodes)
        output = self.nodes[-1]
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        inputs = [n for n in placeholders if "as_saved" not in n.meta]
        count, last = joint.num_primals + len(joint.seeds), len(inputs) - len(joint.sizes)
        self.inputs, self.tangents, self.sizes = inputs[:count], inputs[count:last], inputs[last:]
        results = joint.split_results(output.args[0])  # type: ignore[arg-type]
        self.values: Sequence[Node] = results[0]
        self.gradients: Sequence[Node | None] = results[1]
        self.found: Sequence[Node] = results[2]
        self.reads = self.found[: len(joint.reads)]
        self.value_metas, self.gradient_metas, self.found_metas = joint.split_results(output.meta["val"])
        self.as_saved = as_saved(placeholders, self.inputs, self.values)
        self.late = dependents(
            self.nodes, [*self.tangents, *self.as_saved, *marks(module.graph), *exchanged_late(self.nodes)]
        )
        self.needed_forward = ancestors([*nodes_among(self.values), *self.found])
        needed = ancestors(nodes_among(self.gradients))
        self.early = [n for n in self.nodes if n in needed and n not in self.late]
        self.needed = needed
        # gradients that do not depend on tangents
        self.direct = {g for g in nodes_among(self.gradients) if g not in self.late}
        self.results = set(nodes_among(self.values))
        self.copied = copied(joint, self.inputs, self.values, self.as_saved)
        self.shown = _reshaped(nodes_among(self.values), self.results)
        stored = [n for n in nodes_among(self.values) if n not in self.copied]
        self.costs = Costs(self.nodes[:-1], self.needed_forward, [*stored, *self.shown], self.copied)

    def _own(self, value: Node) -> Node:
        """Returns the node that forward returns for a saved value: a copy if the value may be overwritten before the
        backward.
        """
        if value in self.as_saved:
            return self.as_saved[value]
        if value not in self.copied:
            return value
        with self.module.graph.inserting_before(self.nodes[-1]):
            copy = self.module.graph.call_function(PRIMS["clone"], (value,))
        copy.meta["val"] = _of_copy(value)
        return copy

    def choose(self, budget: float) -> list[Node]:
        """Returns the values to save, in graph order."""
        late = {n for n in self.needed if n in self.late}
        read = {n for n in self.early if n in self.direct or any(user in late for user in n.users)}
        cut = Cut(self.early, self.needed_forward, read, self.results, set(self.inputs), self.costs)
        chosen = dict.fromkeys(self.shown.get(n, n) for n in cut.choose(budget))
        return [*read_late(self.as_saved, self.needed, chosen), *chosen]

    # -- building the two graphs

    def forward(self, saved: Sequence[Node]) -> fx.GraphModule:
        results = [*self.values, *map(self._own, saved), *self.found]
        own = (_of_copy(n) if n in self.copied else n.meta["val"] for n in saved)
        metas = (*self.value_metas, *own, *self.found_metas)
        module = extract(self.module, [*self.inputs, *self.sizes], results, metas, self.nodes)
        describe = self._describer()
        module.meta["saved"] = [describe(n) for n in saved]
        return module

    def backward(self, saved: Sequence[Node]) -> fx.GraphModule:
        late = (n for n in self.nodes if n in self.late)  # recomputed values are then live for a short time
        inputs = [*saved, *self.tangents, *self.sizes, *self.reads]
        module = extract(self.module, inputs, self.gradients, self.gradient_metas, late, self.shown)
        others = self.results.union(self.inputs, self.as_saved) - self.copied
        for node, value in zip(module.graph.nodes, saved, strict=False):
            if value in others:
                node.meta["caller_owned"] = True  # the buffer outlives its last use in this program
            elif value in self.copied:
                node.meta["val"] = _of_copy(value)
        if self.copied.intersection(saved):
            _derive_gaps(module.graph)
        return module

    def _describer(self) -> Callable[[Node], Saved]:
        inputs = {node: i for i, node in enumerate(self.inputs)}
        outputs = {node: i for i, node in reversed(list(enumerate(self.values)))}

        def describe(node: Node) -> Saved:
            given = self.as_saved.get(node, node)
            own = given is node and node in self.copied
            if given in inputs and not own:
                return Saved("input", inputs[given], given.name)
            if given in outputs and not own:
                return Saved("output", outputs[given], given.name)
            return Saved("intermediate", -1, node.name)

        return describe


def _of_copy(value: Node) -> TensorMeta:
    """Returns the metadata of a copy, which has no gaps."""
    meta: TensorMeta = PRIMS["clone"].meta(value.meta["val"])
    return meta


def _derive_gaps(graph: fx.Graph) -> None:
    """Infer strides with gaps anew: they follow from operands, some of which were copied without gaps."""
    for node in graph.nodes:
        val = node.meta.get("val")
        if isinstance(node.target, Prim) and isinstance(val, TensorMeta) and not is_dense(val.shape, val.stride):
            node.meta["val"] = node.target.meta(*map(meta_of_value, node.args))


def _reshaped(values: Iterable[Node], results: Container[Node]) -> dict[Node, Node]:
    """Returns for computed values a result that is a reshape of the value (the product that logits view, for example).

    The result is saved instead, so that the value is not kept twice.
    """
    shown: dict[Node, Node] = {}
    for value in values:
        base = value
        while base.op == "call_function" and base.target is PRIMS["reshape"]:
            base = base.args[0]  # type: ignore[assignment]
        computed = base.op == "call_function" and kind_of(base) not in (None, Kind.VIEW, Kind.CREATION)
        if base is not value and computed and base not in results:
            shown.setdefault(base, value)
    return shown
