"""Decides which values a kernel may write over others: elementwise, over buffers without later readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from smelt.loops.facts import PERIODIC
from smelt.loops.ir import LoopProgram, Pointwise, Scatter
from smelt.schedule.dependencies import operands_first
from smelt.schedule.fuse import Fused
from smelt.schedule.group import Group, NestLevel, may_refuse
from smelt.schedule.machine import Machine
from smelt.schedule.order import Unit
from smelt.schedule.products import Product
from smelt.schedule.realize import Realized, metas_of
from smelt.schedule.sharing import Sharing, shared_buffers
from smelt.shapes.expr import flat_index
from smelt.shapes.size import same_all


class Overwriting:
    """The decisions for one program. `products`: its matrix products by number of their unit."""

    def __init__(
        self,
        program: LoopProgram,
        real: Realized,
        fused: Fused,
        products: Mapping[int, Product],
        machine: Machine,
        sharing: Sharing,
    ) -> None:
        self.program, self.real, self.fused, self.products, self.machine = program, real, fused, products, machine
        self.sharing = sharing

    def overwrites(self, step: list[Unit], output: str, source: str) -> bool:
        """Whether a unit of a step may write `output` over `source`: no other unit of the step may read `source`."""
        writer = next(unit for unit in step if output in unit.writes)
        alone = all(source not in unit.reads for unit in step if unit is not writer)
        return alone and source in writer.reads and self.may_overwrite(writer.number, output, source)

    def possible_updates(
        self, updates: Mapping[int, str], stored: set[str], unit_of: Mapping[int, int]
    ) -> dict[str, str]:
        """Returns the outputs that a kernel may write over an input whose new value they are, with that input.

        Outputs of a kernel that checks values while it writes are excluded: if a check failed, the input would already
        be partly overwritten.

        Args:
            updates: input by position of the output that is its new value.
            stored: names of the buffers that exist.
            unit_of: number of the product's unit by number of a group that belongs to it.
        """
        group = {
            name: unit_of.get(number, number) for number, each in self.fused.groups.items() for name in each.members
        }
        checked = self.refusing(unit_of)
        names = [o.name for o in self.program.outputs]
        shown = {*names, *shared_buffers(self.sharing, (name for name in names if name is not None))}
        found: dict[str, str] = {}
        for position, old in updates.items():
            new = names[position]
            if new is None or new not in group or new not in stored or names.count(new) > 1 or old in shown:
                continue
            if group[new] not in checked and self.alike(new, old) and self.may_overwrite(group[new], new, old):
                found[new] = old
        return found

    def refusing(self, unit_of: Mapping[int, int]) -> set[int]:
        """Returns the units that may raise an error after which the caller can still read its inputs."""
        if not self.machine.survives_checks:
            return set()
        return {unit_of.get(number, number) for number, group in self.fused.groups.items() if may_refuse(group)}

    def alike(self, new: str, old: str) -> bool:
        """Whether two values have the same type, shape and strides, so that one tensor can store either."""
        made, read = metas_of(self.program.nodes[new]), metas_of(self.program.nodes[old])
        same_form = made.dtype == read.dtype and same_all(made.shape, read.shape)
        return same_form and same_all(self.real.strides[new], self.real.strides[old])

    def reads_ahead(self, number: int, source: str) -> bool:
        """Whether a product's unit reads elements of a buffer other than the element being computed."""
        product = self.products[number]
        before = (self.fused.groups[number] for number in product.prologues)
        return source in {o.view.base for o in product.operands} or any(source in g.accesses for g in before)

    def writes_into(self, node: object, group: Group, source: str) -> bool:
        """Whether a scatter may write into this buffer instead of a copy of it: the buffer has the copy's strides, and
        the scatter does not read it for another purpose.
        """
        assert isinstance(node, Scatter)
        if node.accumulate and not self.machine.takes_over:
            return False
        made, read = metas_of(node), metas_of(self.program.nodes[source])
        if node.inputs[0] != source or len(group.accesses[source]) > 1 or made.dtype != read.dtype:
            return False
        return same_all(self.real.strides[node.name], self.real.strides[source])

    def may_overwrite(self, number: int, output: str, source: str) -> bool:
        group = self.fused.groups.get(number)
        if group is None or _is_repeatable(group) or source in shared_buffers(self.sharing, group.accesses):
            return False
        if group.scatter:
            return self.writes_into(group.members[output].node, group, source)
        if not group.flat and group.members[output].nest_level is not NestLevel.AFTER:
            return False
        if number in self.products and (output not in group.members or self.reads_ahead(number, source)):
            return False
        nodes = self.program.nodes
        made, read = metas_of(nodes[output]), metas_of(nodes[source])
        if made.dtype.itemsize != read.dtype.itemsize:
            return False
        if not self.machine.overwrites_unused and not _reads(group, output, source):
            return False
        offset = flat_index(group.members[output].index, self.real.strides[output])
        return all(flat_index(i, self.real.strides[source]) == offset for i in group.accesses.get(source, ()))


def _is_repeatable(group: Group) -> bool:
    """Whether the group's kernel may be run a second time on the same inputs, as happens if its fast form
    refuses them.
    """
    return any(isinstance(m.node, Pointwise) and m.node.op in PERIODIC for m in group.members.values())


def _reads(group: Group, output: str, source: str) -> bool:
    """Whether a member is computed from `source`."""

    def operands(name: str) -> Iterable[str]:
        return (read.name for read in group.members[name].reads) if name in group.members else ()

    return source in operands_first([output], operands)
