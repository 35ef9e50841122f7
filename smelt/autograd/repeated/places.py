"""Prim graph of a graph with four blocks in; the block and the chain of each call out.

The forward and the backward of a block are each a periodic part of the graph's calls. It is checked that the calls of
block 2 differ from those of block 1 only in their operands, which are the corresponding values one block later.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from smelt.autograd.repeated.forms import alike
from smelt.autograd.repeated.shorten import Short
from smelt.graph.ir.gradient_marks import Contribution
from smelt.prims.registry import STREAMS
from smelt.prims.table import PRIMS

RANDOM = "random"
"""Entry of a prim's metadata: its operator's number among those that draw random numbers."""

NAMES = ("from", "of")
"""Entries of a prim's metadata that are names of torch-level nodes."""

Place = tuple[Hashable, int]
"""The chain of a value, and the number of its block."""


class Refused(Exception):  # noqa: N818  no error: the graph is traced as a whole
    """Raised when the prim graph of a block depends on how many blocks there are."""


def _args(call: Node) -> tuple[object, ...]:
    """Returns the arguments of a call, without the stream from which it draws random numbers."""
    return (call.args[0], *call.args[2:]) if call.target is PRIMS["random"] else call.args


@dataclass(frozen=True)
class Part:
    """The calls of a block in the forward or in the backward: `size` calls from `first` in block 1, in block 2 from
    `second`.
    """

    name: str
    first: int
    second: int

    @property
    def size(self) -> int:
        return abs(self.second - self.first)

    def place(self, at: int) -> Place:
        """Returns the place of a call by its index."""
        periods, offset = divmod(at - self.first, self.size)
        return (self.name, offset), 1 + (periods if self.second > self.first else -periods)


class Places:
    """The places of the inputs and calls of a prim graph.

    Attributes:
        calls: the graph's calls, in order.
        of: the place of each value that has one: those of blocks 1 and 2, and what continues the period around them.
        parts: the parts of the graph that are copied.
        draws: the number of operators of a block that draw random numbers, unused ones included.
    """

    def __init__(
        self,
        primals: Sequence[Node],
        others: Sequence[Node],
        calls: Sequence[Node],
        short: Short,
        of_results: Mapping[Node, Place],
    ) -> None:
        """Args:
        primals: the inputs that are inputs of `short.module`.
        others: the other inputs.
        of_results: the places of those of `others` that belong to results of blocks.

        Raises:
            Refused: a block's values depend on how many blocks there are, as far as can be seen.
        """
        self.calls, self.short = calls, short
        self.torch_index = {node.name: i for i, node in enumerate(short.blocks.calls)}
        self.of: dict[Node, Place] = {**of_results}
        self.draws = 0
        self.have_tangents = any("as_saved" not in node.meta for node in of_results)
        self.place_inputs(primals, others)
        self.parts = self.find_parts()
        for part in self.parts:
            self.place_calls(part)
        self.parts += self.find_last_part()
        for part in self.parts:
            self.check(part)

    def place_inputs(self, primals: Sequence[Node], others: Sequence[Node]) -> None:
        short = self.short
        for chain, block, at in zip(short.chain, short.block, short.position, strict=True):
            if at is not None and chain is not None and block is not None:
                self.of[primals[at]] = (("input", chain), block)
        by_name = {node.name: self.of[node] for node in primals if node in self.of}
        for node in others:
            kind, which = node.meta.get("as_saved", ("", None))
            if which in by_name:
                root, block = by_name[which]
                self.of[node] = ((kind, root), block)

    def find_parts(self) -> list[Part]:
        """Returns the calls that come from block 1, those of the forward and, if there are any, of the backward."""
        blocks = self.short.blocks
        first = {"from": dict[int, int](), "of": dict[int, int]()}
        for at, call in enumerate(self.calls):
            key = "of" if "backward" in call.meta else "from"
            origin = self.torch_index.get(call.meta.get(key, ""))
            if origin is not None:
                first[key].setdefault(origin, at)
        one, other = blocks.start + blocks.period, blocks.start + (2 + self.short.left_out) * blocks.period
        offsets = range(blocks.period)
        parts = []
        for name, order in (("from", offsets), ("of", reversed(offsets))):
            known = first[name]
            seed = next((k for k in order if one + k in known and other + k in known), None)
            if seed is not None:
                parts.append(Part(name, known[one + seed], known[other + seed]))
        if not parts or parts[0].name != "from":
            raise Refused
        return parts

    def find_last_part(self) -> list[Part]:
        """Returns the calls after the backward that give gradients their forms, and gives them places."""
        found: dict[int, int] = {}
        for at, call in enumerate(self.calls):
            if call not in self.of and not any(name in call.meta for name in NAMES):
                for node in call.all_input_nodes:
                    if node in self.of:
                        found.setdefault(self.of[node][1], at)
        if 1 not in found:
            return []
        if found[1] >= found.get(2, 0):
            raise Refused
        part = Part("last", found[1], found[2])
        self.place_calls(part)
        return [part]

    def place_calls(self, part: Part) -> None:
        """Give a place to the calls of blocks 1 and 2, and to those before and after them that continue the period."""
        low, high = min(part.first, part.second), max(part.first, part.second) + part.size
        if high > len(self.calls):
            raise Refused
        while low > 0 and self.continues(low - 1, low - 1 + part.size):
            low -= 1
        while high < len(self.calls) and self.continues(high, high - part.size):
            high += 1
        for at in range(low, high):
            if self.of.setdefault(self.calls[at], part.place(at)) != part.place(at):
                raise Refused

    def continues(self, at: int, other: int) -> bool:
        one, two = self.calls[at], self.calls[other]
        if one in self.of:
            return False
        same = self.same_target(one, two) and ("backward" in one.meta) == ("backward" in two.meta)
        return same and bool(one.meta["val"] == two.meta["val"])

    def check(self, part: Part) -> None:
        """Check that the calls of block 2 are those of block 1, one block later.

        Raises:
            Refused: they are not.
        """
        for at in range(part.size):
            one, other = self.calls[part.first + at], self.calls[part.second + at]
            pairs: list[tuple[Node, Node]] = []
            same = one.op == other.op and self.same_target(one, other) and self.draw_alike(one, other)
            if not (same and alike(_args(one), _args(other), pairs) and alike(one.kwargs, other.kwargs, pairs)):
                raise Refused
            if not self.have_same_meta(one, other) or not all(self.follows(x, y) for x, y in pairs):
                raise Refused

    def have_same_meta(self, one: Node, other: Node) -> bool:
        if one.meta.keys() != other.meta.keys():
            return False
        return all(
            self.copied_name(value, self.short.left_out + 1) == other.meta[key]
            if key in NAMES
            else key == RANDOM or alike(value, other.meta[key])  # random numbers are compared by `draw_alike`
            for key, value in one.meta.items()
        )

    def same_target(self, one: Node, other: Node) -> bool:
        """Whether two calls call the same. Marks of gradients are found anew if blocks return values with tangents."""
        first, second = one.target, other.target
        if first is second or type(first) is not type(second) or not isinstance(first, Contribution):
            return first is second
        assert isinstance(second, Contribution)
        return first.mask == second.mask or self.have_tangents

    def draw_alike(self, one: Node, other: Node) -> bool:
        """Whether two corresponding calls draw no random numbers, or as many operators apart as the other calls do."""
        first, second = one.meta.get(RANDOM), other.meta.get(RANDOM)
        if first is None or second is None:
            return first is second and one.target is not PRIMS["random"]
        self.draws = self.draws or second - first
        streams = (int(call.args[1]) if call.target is PRIMS["random"] else 0 for call in (one, other))  # type: ignore
        before, after = streams
        far = STREAMS * self.draws if one.target is PRIMS["random"] else 0
        return second - first == self.draws > 0 and after - before == far and "backward" not in one.meta

    def first_draw_after(self, part: Part) -> int | None:
        """Returns the number of the first operator that draws random numbers in block 2; None if no later one draws.

        Raises:
            Refused: it is unknown how many operators of the blocks between draw.
        """
        drawn = [call.meta.get(RANDOM) for call in self.calls]
        later = [number for number in drawn[part.second :] if number is not None]
        earlier = [number for number in drawn[: part.second] if number is not None]
        if later and not (self.draws and max(earlier, default=0) < min(later)):
            raise Refused
        return min(later, default=None)

    def copied_name(self, name: str, later: int) -> str:
        """Returns the name of the torch-level node that is in the whole graph `later` blocks after a node."""
        at, blocks = self.torch_index.get(name, -1), self.short.blocks
        inside = blocks.start <= at and at + later * blocks.period < len(blocks.calls)
        return blocks.calls[at + later * blocks.period].name if inside else name

    def follows(self, one: Node, other: Node) -> bool:
        """Whether a value is in its block what another is in the block before, or both are one value of no block."""
        place, next_place = self.of.get(one), self.of.get(other)
        if place is None or next_place is None:
            return one is other and place is None
        return 0 <= place[1] <= 2 and next_place == (place[0], place[1] + 1)

    def block_of(self, node: Node) -> int | None:
        """Returns the block of a node; 0 also for what comes before, 3 for what comes after; None if it is unknown."""
        place = self.of.get(node)
        if place is not None:
            return place[1]
        at = self.torch_index.get(node.meta.get("of") or node.meta.get("from") or "")
        return None if at is None else 0 if self.short.blocks.level_at(at) <= 1 else 3
