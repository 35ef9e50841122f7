"""Fuses equal layers once: a program with most of them removed is fused, and its groups are copied to all layers.

    program, its repetition -> the program without most blocks -> groups -> the same groups for all blocks

The result equals the fusion of the whole program, also across the borders of blocks: the remaining blocks are fused
together with their neighbours, and the groups are accepted only if they are the same for all but the outermost blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any

from smelt.loops.forms import numbers, stream_of
from smelt.loops.ir import Extern, Index, LoopProgram, Node, Ops, Pointwise, Reduction, Ref, Scatter, Value
from smelt.schedule.dependencies import Access, Names
from smelt.schedule.fuse import Fused, fuse
from smelt.schedule.group import EqualLayerGroup, Group
from smelt.schedule.machine import Machine
from smelt.schedule.realize import Realized, StridedView
from smelt.schedule.repetition import Repetition, find_repetition, longest_run
from smelt.schedule.split import PARTIAL_SUFFIX

MAX_PERIOD_BLOCKS = 6
"""Maximum period of the choice of buffers, in blocks: sums over blocks are stored every few blocks."""

MIN_REMOVED_BLOCKS = 4
"""Minimum number of removed blocks for which fusing the short program saves time."""


def fuse_blocks(
    program: LoopProgram, split: LoopProgram, real: Realized, names: Names, machine: Machine
) -> Fused | None:
    """Returns the groups of a program; None if it has no equal blocks.

    Args:
        program: the program before reductions were split.
        split: the program with split reductions, which is fused.
    """
    repetition = find_repetition(program)
    if repetition is None:
        return None
    blocks = _Blocks(split, real, repetition)
    blocks.choose()
    short = blocks.shortened() if blocks.removed >= MIN_REMOVED_BLOCKS else None
    buffers = blocks.short_buffers(short) if short is not None else None
    if short is None or buffers is None:
        return None
    groups = fuse(short, buffers, names, machine, blocks.stands_for(short))
    return blocks.all_groups(short, groups, machine.fusion.readers)


class _Blocks:
    """A program, its short form with fewer blocks, and the transfer of the short form's groups to all blocks.

    Attributes:
        first, last: the range of blocks that equal, except for operands, the block `period` blocks away.
        out: the blocks that are removed.
        pattern: one period of blocks, whose groups are copied to all inner blocks (without the outermost at either
            end).
        crossing: values of the short program whose operands differ from the whole program's.
    """

    def __init__(self, program: LoopProgram, real: Realized, repetition: Repetition) -> None:
        self.program, self.real = program, real
        self.block, self.positions = repetition.block, repetition.positions
        self.first, self.last = repetition.first, repetition.last
        self.period = 1
        self.out = self.pattern = range(0)
        self.crossing: set[str] = set()
        self._assign_partial_reductions()

    def _assign_partial_reductions(self) -> None:
        """Assign partial reductions, which splitting added, to the blocks of their final reductions."""
        for name, (chain, at) in list(self.positions.items()):
            if (
                at == 0
                and name + PARTIAL_SUFFIX in self.program.nodes
                and all(each + PARTIAL_SUFFIX in self.program.nodes for each in chain)
            ):
                chunks = [each + PARTIAL_SUFFIX for each in chain]
                self.positions.update((each, (chunks, at)) for at, each in enumerate(chunks))
                self.block.update((chunk, self.block[each]) for chunk, each in zip(chunks, chain, strict=True))

    def moved(self, name: str, blocks: int) -> str | None:
        """Returns the corresponding value `blocks` blocks later; the value itself if it belongs to no block; None if
        there is no such block.
        """
        found = self.positions.get(name)
        if found is None:
            return name
        chain, at = found
        return chain[at + blocks] if 0 <= at + blocks < len(chain) else None

    def choose(self) -> None:
        """Find the period, the blocks for which it applies, and the blocks to remove."""
        looks: dict[int, set[Hashable]] = {block: set() for block in range(self.first, self.last + 1)}
        for name, block in self.block.items():
            if block in looks:
                looks[block].add(self._buffer(name))
        known: dict[Hashable, int] = {}
        forms = [known.setdefault(frozenset(looks[block]), len(known)) for block in sorted(looks)]
        runs = [(*longest_run(forms, period), period) for period in range(1, MAX_PERIOD_BLOCKS + 1)]
        length, start, self.period = max(runs, key=lambda run: run[0] - run[2])
        self.first += start
        self.last = self.first + length + self.period - 1
        kept = self.period + 2
        self.pattern = range(self.first + 1, self.first + 1 + self.period)
        removed = (self.last - self.first + 1 - 2 * kept) // self.period * self.period
        self.out = range(self.first + kept, self.first + kept + max(removed, 0))

    @property
    def removed(self) -> int:
        return len(self.out)

    def _buffer(self, name: str) -> Hashable:
        """Returns a key that is equal for corresponding values of two blocks if their buffers and views are alike."""
        chain, _ = self.positions[name]
        strides, view = self.real.strides.get(name), self.real.views.get(name)
        seen: Hashable = None
        if view is not None:
            base = self.positions.get(view.base)
            at = view.base if base is None else (base[0][0], self.block[view.base] - self.block[name])
            seen = (at, numbers(view.shape), numbers(view.stride), numbers([view.offset]))
        return chain[0], name in self.real.stored, None if strides is None else numbers(strides), seen

    # the short program

    def shortened(self) -> LoopProgram | None:
        """Returns the program without the removed blocks; None if an operand then has no replacement."""
        program, nodes = self.program, dict[str, Node]()
        gone = {name for name, block in self.block.items() if block in self.out}
        for name, node in program.nodes.items():
            if name in gone:
                continue
            if any(read in gone for read in node.inputs):
                others = self._others(node, gone)
                if others is None:
                    return None
                self.crossing.add(name)
                node = _renamed(node, others)
            if any(read not in nodes for read in node.inputs):
                return None
            nodes[name] = node
        outputs = [o for o in program.outputs if o.name not in gone]
        return replace(program, nodes=nodes, outputs=outputs, inputs=[n for n in program.inputs if n not in gone])

    def _others(self, node: Node, gone: Collection[str]) -> Mapping[str, str] | None:
        """Returns replacements for the removed operands of a value before or after the gap; None if one of them has no
        replacement.
        """
        others = {read: self._across(node.name, read) for read in node.inputs if read in gone}
        known = {read: other for read, other in others.items() if other is not None and other not in gone}
        return known if len(known) == len(others) else None

    def _across(self, name: str, read: str) -> str | None:
        """Returns the value on the other side of the gap that replaces the removed operand `read` of `name`, or
        None.
        """
        block = self.block.get(name)
        if block is None:
            return None
        return self.moved(read, -self.removed if block >= self.out.stop else self.removed)

    def short_buffers(self, short: LoopProgram) -> Realized | None:
        """Returns the buffers of the short program; None if a view has no base there."""
        real, nodes, views = self.real, short.nodes, dict[str, StridedView]()
        for name, view in real.views.items():
            if name in nodes:
                base = view.base if view.base in nodes else self._across(name, view.base)
                if base is None or base not in nodes:
                    return None
                views[name] = replace(view, base=base)
        strides = {name: stride for name, stride in real.strides.items() if name in nodes}
        return Realized(real.stored & nodes.keys(), strides, views)

    def stands_for(self, short: LoopProgram) -> dict[str, int]:
        """Returns for each value of a block of the short program the number of blocks for which its block stands."""
        copies = 1 + self.removed // self.period
        return {n: copies if self.block[n] in self.pattern else 1 for n in short.nodes if n in self.block}

    # the groups

    def _inner(self, block: int) -> bool:
        """Whether the groups of a block are copies of the pattern's."""
        return self.pattern.start <= block <= self.last - 2

    def _later(self, block: int) -> int:
        """Returns the block one period later in the short program."""
        later = block + self.period
        return later + self.removed if block < self.out.start <= later else later

    def _compared(self, block: int) -> bool:
        """Whether a block of the short program must have the same groups as the block one period later."""
        return self._inner(block) and self._inner(self._later(block))

    def all_groups(self, short: LoopProgram, fused: Fused, readers: int) -> Fused | None:
        """Returns the groups of the whole program; None if the groups of inner blocks differ.

        Args:
            readers: the maximum number of groups that touch a buffer for every pair of them to be tried.
        """
        drawn = self._drawn()
        if drawn is None or not self._same_groups_in_blocks(fused):
            return None
        position = {name: at for at, name in enumerate(self.program.nodes)}
        steps = range(0, self.last - 1 - self.pattern.start, self.period)
        streams = {blocks: self._streams(drawn, blocks) for blocks in steps}
        groups: dict[int, Group] = {}
        for group in fused.groups.values():
            block = self._block_of(group)
            inner = block is not None and self._inner(block)
            if inner and block not in self.pattern:
                continue
            copies = self._copies(group, steps if inner else steps[:1], position)
            if copies is None or self._crosses(group, short):
                return None
            original = copies.pop(0)
            groups[original.number] = original
            for copy, blocks in zip(copies, steps[1:], strict=False):
                copy.like = EqualLayerGroup(original, streams[blocks])
                groups[copy.number] = copy
        if not _often_touched(fused.often_read, groups.values(), readers):
            return None
        return self._fused(fused, dict(sorted(groups.items())), position)

    def _copies(self, group: Group, steps: range, position: Mapping[str, int]) -> list[Group] | None:
        """Returns copies of a group, `steps` blocks later each, for inner blocks only; the first one is the group
        itself.
        """
        block, found = self._block_of(group) or 0, list[Group]()
        for blocks in steps:
            if blocks and not self._inner(block + blocks):
                break
            copy = self._copied(group, blocks, position)
            if copy is None:
                return None
            found.append(copy)
        return found

    def _drawn(self) -> Mapping[str, int] | None:
        """Returns for each value the random stream from which it draws; None if several values draw from one stream."""
        calls = ((name, stream_of(node)) for name, (node, _) in self.program.calls.items())
        drawn = {name: stream for name, stream in calls if stream is not None}
        return drawn if len(set(drawn.values())) == len(drawn) else None

    def _block_of(self, group: Group) -> int | None:
        """Returns the first block that has a member of a group, or None."""
        return min((self.block[name] for name in group.members if name in self.block), default=None)

    def _same_groups_in_blocks(self, fused: Fused) -> bool:
        """Whether each inner block of the short program has the same groups as the block one period later."""
        count = Counter(self._block_of(group) for group in fused.groups.values())
        for group in fused.groups.values():
            block = self._block_of(group)
            if block is None or not self._compared(block):
                continue
            names = {self._counterpart(name) for name in group.members}
            if None in names or count[block] != count[self._later(block)]:
                return False
            other = fused.groups.get(fused.number_of.get(next(iter(names)), -1))  # type: ignore[arg-type]
            if other is None or other.members.keys() != names:
                return False
        return True

    def _counterpart(self, name: str) -> str | None:
        """Returns the corresponding value one period later in the short program, or None."""
        block = self.block.get(name)
        return None if block is None else self.moved(name, self._later(block) - block)

    def _crosses(self, group: Group, short: LoopProgram) -> bool:
        """Whether a group computes, as a member or inlined, a value whose operands differ in the short program."""
        waiting, seen = list(group.members), set(group.members)
        while waiting:
            name = waiting.pop()
            if name in self.crossing:
                return True
            inlined = [n for n in short.nodes[name].inputs if n not in seen and n not in self.real.stored]
            seen.update(inlined)
            waiting += inlined
        return False

    def _streams(self, drawn: Mapping[str, int], blocks: int) -> dict[int, int]:
        """Returns for each value's random stream the stream of the corresponding value `blocks` blocks later."""
        moved = ((stream, self.moved(name, blocks)) for name, stream in drawn.items())
        return {stream: drawn[name] for stream, name in moved if name is not None}

    def _copied(self, group: Group, blocks: int, position: Mapping[str, int]) -> Group | None:
        """Returns the copy of a group `blocks` blocks later, or None."""
        names = {name: self.moved(name, blocks) for name in group.accesses}
        if not all(name in position for name in names.values()):
            return None
        moved: dict[str, str] = names  # type: ignore[assignment]
        members = {
            moved[name]: replace(
                member,
                node=self.program.nodes[moved[name]],  # type: ignore[arg-type]
                reads=tuple([Access(moved[read.name], read.index) for read in member.reads]),
            )
            for name, member in group.members.items()
        }
        at = min(position[name] for name in members)
        accesses = {moved[name]: indices for name, indices in group.accesses.items()}
        return replace(group, number=at, members=members, position=at, accesses=accesses)

    def _fused(self, fused: Fused, groups: dict[int, Group], position: Mapping[str, int]) -> Fused | None:
        """Returns the result of fusion for the whole program; None if a value is in no group or in two."""
        loops, nodes = (Pointwise, Reduction, Scatter), self.program.nodes
        others: dict[int, Node] = {position[name]: node for name, node in nodes.items() if not isinstance(node, loops)}
        number_of = {name: number for number, group in groups.items() for name in group.members}
        stored = {name for name in self.real.stored if isinstance(nodes[name], loops)}
        if number_of.keys() != stored or sum(len(group.members) for group in groups.values()) != len(stored):
            return None
        number_of |= {node.name: number for number, node in others.items()}
        return Fused(groups, others, number_of, fused.decisions)


def _often_touched(names: Collection[str], groups: Collection[Group], readers: int) -> bool:
    """Whether more than `readers` groups touch each of these buffers. If not, fusing the whole program might have tried
    pairs of them.
    """
    touched = Counter(name for group in groups for name in names if name in group.accesses)
    return all(touched[name] > readers for name in names)


class _Renaming:
    """An `Ops` handler that renames the values a body loads."""

    def __init__(self, ops: Ops, names: Mapping[str, str]) -> None:
        self._handler, self._names = ops, names

    def load(self, name: str, index: Index) -> Value:
        return self._handler.load(self._names.get(name, name), index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Returns a node with its operands renamed."""

    def through(body: Callable[[Ops, Index], Any]) -> Callable[[Ops, Index], Any]:
        return lambda ops, index: body(_Renaming(ops, names), index)

    inputs = tuple(names.get(name, name) for name in node.inputs)
    match node:
        case Pointwise() | Reduction():
            return replace(node, inputs=inputs, body=through(node.body))
        case Scatter(base=base, body=body, target=target):
            return replace(node, inputs=inputs, base=through(base), body=through(body), target=through(target))
        case Extern():
            shares = tuple(names.get(name, name) for name in node.shares)
            args, kwargs = _references(node.args, names), _references(node.kwargs, names)
            return replace(node, inputs=inputs, args=args, kwargs=kwargs, shares=shares)
    return replace(node, inputs=inputs)


def _references(value: Any, names: Mapping[str, str]) -> Any:
    match value:
        case Ref(name):
            return Ref(names.get(name, name))
        case tuple():
            return tuple([_references(item, names) for item in value])
        case list():
            return [_references(item, names) for item in value]
        case dict():
            return {key: _references(item, names) for key, item in value.items()}
    return value
