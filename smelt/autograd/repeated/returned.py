"""Results of a graph with four blocks in; those of the graph with all its blocks out: blocks may return values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch.fx import Node

from smelt.autograd.repeated.places import Place, Places, Refused
from smelt.autograd.repeated.shorten import Result, Short
from smelt.autograd.trace.plan import Constant, Fresh, Joint, OutputPlan, Repeated


class Returned:
    """The results of the whole graph.

    Attributes:
        plans: the plan of each result that the caller gets.
        origins: for each program output, the result for which it was made.
        values: for each program output, the value in the short graph from which it is copied.
        metas: the metadata of each program output.
        sources: for each program output, that of the short graph from which it is copied.
        differentiable: positions of the program outputs that have a tangent.
    """

    def __init__(self, joint: Joint, short: Short, values: Sequence[Any], metas: Sequence[Any]) -> None:
        """Args:
        values: the program outputs of the short graph.
        metas: their metadata.

        Raises:
            Refused: the results are more than values of the graph.
        """
        self.joint, self.short = joint, short
        self.plans: list[OutputPlan] = []
        self.origins: list[Result] = []
        self.values: list[Any] = []
        self.metas: list[Any] = []
        self.sources: list[int] = []
        if len(joint.outputs) != sum(not each.later for each in short.results):
            raise Refused
        whole = {each.position: at for at, each in enumerate(short.results) if not each.later}
        for result in short.results:
            match joint.outputs[result.position]:
                case Fresh(index):
                    self.plans.append(Fresh(len(self.values)))
                    self.origins.append(result)
                    self.values.append(values[index])
                    self.metas.append(metas[index])
                    self.sources.append(index)
                case Repeated(output) if not result.later:
                    self.plans.append(Repeated(whole[output]))
                case Constant() as plan if not result.later:
                    self.plans.append(plan)
                case _:
                    raise Refused
        if {*self.sources} != {*range(joint.num_outputs)}:
            raise Refused
        self.differentiable = tuple(sorted(self.spread(joint.differentiable)))

    def check_blocks(self, values: Sequence[Any], metas: Sequence[Any], places: Places) -> None:
        """Check that the results of block 2 are those of block 1, one block later.

        Raises:
            Refused: they are not.
        """
        of_block = [{r.slot: r.position for r in self.short.results if r.block == b and not r.later} for b in (1, 2)]
        if of_block[0].keys() != of_block[1].keys():
            raise Refused
        for slot, position in of_block[0].items():
            one, other = self.joint.outputs[position], self.joint.outputs[of_block[1][slot]]
            if not (isinstance(one, Fresh) and isinstance(other, Fresh)):
                raise Refused
            x, y = values[one.index], values[other.index]
            follows = isinstance(x, Node) and isinstance(y, Node) and places.follows(x, y)
            if not follows or metas[one.index] != metas[other.index] or not self.same_plan(one.index, other.index):
                raise Refused

    def same_plan(self, one: int, other: int) -> bool:
        """Whether the plan says the same of two program outputs."""
        return all((one in each) == (other in each) for each in (self.joint.unsaved_outputs, self.joint.differentiable))

    def places(self, others: Sequence[Node]) -> dict[Node, Place]:
        """Returns the places of tangents, and of results as they are when the backward runs.

        Args:
            others: the inputs of the short graph that are no primals.
        """
        blocks = {
            source: (origin.slot, origin.block) for source, origin in zip(self.sources, self.origins, strict=True)
        }
        found: dict[Node, Place] = {}
        named = [*self.tangents(others).items(), *self.saved(others).items()]
        for source, node in named:
            slot, block = blocks[source]
            if block is not None:
                kind = node.meta["as_saved"][0] if "as_saved" in node.meta else "tangent"
                found[node] = ((kind, slot), block)
        return found

    def tangents(self, others: Sequence[Node]) -> dict[int, Node]:
        """Returns the tangents of the short graph by program output."""
        given = [node for node in others if "as_saved" not in node.meta][len(self.joint.seeds) :]
        return dict(zip(self.joint.differentiable, given, strict=False))

    def saved(self, others: Sequence[Node]) -> dict[int, Node]:
        """Returns the inputs that are results of the short graph as they are when the backward runs, by program
        output.
        """
        found = ((node, *node.meta["as_saved"]) for node in others if "as_saved" in node.meta)
        return {which: node for node, kind, which in found if kind == "output"}

    def spread(self, positions: Collection[int]) -> frozenset[int]:
        """Returns the program outputs of the whole graph that are copied from these of the short graph."""
        return frozenset(at for at, source in enumerate(self.sources) if source in positions)
