"""Finds the repeated blocks of a program: equal layers of a model, recognised by what they compute.

A chain is the list of corresponding values of all layers. Layers need not be contiguous in the program: a backward
graph recomputes values of the layers in one order, and differentiates the layers in the reverse order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from smelt.loops.forms import form_of, form_of_meta
from smelt.loops.ir import Constant, Extern, Input, LoopProgram, Node, Reduction, Scatter

MIN_BLOCKS = 10
"""Minimum number of repeated blocks: of fewer, too few could be removed before fusion for the search to pay."""

MIN_RUN = MIN_BLOCKS + 2
"""Minimum number of repeated sequences of externs for which blocks are searched. The first and the last sequence are
mostly in no block: their operands or users differ.
"""

MAX_ANCHORS = 4096
"""Maximum number of externs that are compared with each other, which takes quadratic time."""

BLOCK_KINDS = (1, 2, 3)
"""Numbers of kinds of layers with equal externs that may alternate, in the order in which they are tried."""


@dataclass
class Repetition:
    """Blocks `first` to `last`, each of which computes the same as the block before it, from other operands.

    Attributes:
        positions: for each value of a block, its chain and its index in the chain.
        block: for each value of a block, the number of the block. Values before and after the blocks are not contained.
    """

    positions: dict[str, tuple[list[str], int]]
    block: dict[str, int]
    first: int
    last: int


def find_repetition(program: LoopProgram) -> Repetition | None:
    """Returns the repeated blocks of a program; None if they are few, or if a value reads from many of them."""
    if program.after:
        return None
    # kinds of layers may alternate: then the next layer of a kind follows `kinds` layers later
    for kinds in BLOCK_KINDS:
        search = _Search(program)
        seed = search.seed(kinds)
        if seed is None:
            return None
        if search.pair(*seed):
            search.number(seed[0])
            found = search.found(seed[0])
            if found is not None:
                return found
    return None


class _Search:
    def __init__(self, program: LoopProgram) -> None:
        self.program, self.nodes = program, program.nodes
        self.results: dict[str, list[Hashable]] = {}
        for output in program.outputs:
            if output.name is not None:
                self.results.setdefault(output.name, []).append(form_of_meta(output.meta))
        self.known: dict[Hashable, int] = {}
        self.key: dict[str, int] = {}
        self.users: Mapping[str, list[str]] = {}
        self.following: dict[str, str] = {}
        self.previous: dict[str, str] = {}
        self.positions: dict[str, tuple[list[str], int]] = {}
        self.block: dict[str, int] = {}

    def form(self, node: Node) -> Hashable:
        """Returns a key that is equal for corresponding values of two blocks: type, metadata, operation, number of
        operands.
        """
        meta = form_of_meta(node.meta)
        if isinstance(node, (Input, Constant)):
            return type(node), meta
        call = self.program.calls.get(node.name)
        if call is None:
            return object()
        return type(node), meta, form_of(call[0]), call[1], len(node.inputs), tuple(self.results.get(node.name, ()))

    def take_keys(self, names: Iterable[str]) -> None:
        """Give each form of values a number: equal forms have equal numbers."""
        known = self.known
        self.key |= {n: known.setdefault(self.form(self.nodes[n]), len(known)) for n in names if n not in self.key}

    def seed(self, kinds: int) -> tuple[str, str] | None:
        """Returns two corresponding values of successive blocks in the middle of the program, or None.

        Args:
            kinds: number of kinds of blocks with equal externs that alternate.
        """
        anchors = [n for n, node in self.nodes.items() if isinstance(node, Extern)]
        if len(anchors) < MIN_RUN:
            anchors = [n for n, node in self.nodes.items() if isinstance(node, (Reduction, Scatter))]
        if not MIN_RUN <= len(anchors) <= MAX_ANCHORS:
            return None
        self.take_keys(anchors)
        keys = [self.key[name] for name in anchors]
        best, start, period = 0, 0, 0
        for step in range(1, len(keys) // MIN_RUN + 1):
            length, begins = longest_run(keys, step)
            if length + step > best and length + step >= MIN_RUN * step:
                best, start, period = length + step, begins, step
        period *= kinds
        if not best or best < MIN_RUN * period:
            return None
        at = start + (best - period) // 2
        return anchors[at], anchors[at + period]

    def pair(self, one: str, other: str) -> bool:
        """Extend the pair to all corresponding values, by operands and users; returns False if this is ambiguous."""
        self.take_keys(self.nodes)
        self.users = self.program.users()
        waiting = deque([(one, other)])
        while waiting:
            a, b = waiting.popleft()
            if self.following.get(a) == b:
                continue
            if a in self.following or b in self.previous:
                return False
            self.following[a], self.previous[b] = b, a
            for x, y in zip(self.nodes[a].inputs, self.nodes[b].inputs, strict=True):
                if x != y and self.key[x] == self.key[y]:
                    waiting.append((x, y))
            waiting.extend(self.users_of(a, b))
        self.find_positions()
        # fewer positions if some values form a cycle
        return len(self.positions) == len(self.following.keys() | self.previous.keys())

    def find_positions(self) -> None:
        """Set the chains; each starts at a value that follows no other."""
        for first in [name for name in self.following if name not in self.previous]:
            chain, following = [first], self.following.get(first)
            while following is not None:
                chain.append(following)
                following = self.following.get(following)
            self.positions.update((name, (chain, at)) for at, name in enumerate(chain))

    def users_of(self, a: str, b: str) -> list[tuple[str, str]]:
        """Returns corresponding users of two values: the same computation with these values as the same operand."""
        ours = [(self.key[user], self.nodes[user].inputs.index(a)) for user in self.users[a]]
        theirs = [(self.key[user], self.nodes[user].inputs.index(b)) for user in self.users[b]]
        if ours == theirs:
            return [(x, y) for x, y in zip(self.users[a], self.users[b], strict=True) if x != y]
        known, count, counterpart = Counter(ours), Counter(theirs), dict(zip(theirs, self.users[b], strict=True))
        once = [
            (x, counterpart[use]) for x, use in zip(self.users[a], ours, strict=True) if known[use] == count[use] == 1
        ]
        return [(x, y) for x, y in once if x != y]

    def number(self, seed: str) -> None:
        """Number the blocks. Their borders are arbitrary: values that are reached from the seed first get the seed's
        number.
        """
        waiting = deque([(seed, 0)])
        while waiting:
            name, block = waiting.popleft()
            if name in self.block or name not in self.positions:
                continue
            chain, at = self.positions[name]
            for number, each in enumerate(chain, block - at):
                self.block[each] = number
                waiting.extend([(n, number) for n in (*self.nodes[each].inputs, *self.users[each])])

    def found(self, seed: str) -> Repetition | None:
        """Returns the longest range of equal blocks around the seed, or None."""
        broken = set[int]()
        """Blocks that differ from the next one."""
        for name, block in self.block.items():
            other = self.following.get(name)
            if other is None or not self.alike(name, other):
                broken.add(block)
            if name not in self.previous:
                broken.add(block - 1)
        at = self.block[seed]
        first = max((b for b in broken if b < at), default=at - 1) + 1
        last = min((b for b in broken if b >= at), default=at)
        if last - first + 1 < MIN_BLOCKS:
            return None
        return Repetition(self.positions, self.block, first, last)

    def alike(self, a: str, b: str) -> bool:
        """Whether the operands and the users of two values correspond or are the same."""
        following = self.following
        inputs = zip(self.nodes[a].inputs, self.nodes[b].inputs, strict=True)
        if not all(following.get(x) == y or (x == y and x not in self.block) for x, y in inputs):
            return False
        return {following.get(x) for x in self.users[a]} == set(self.users[b])


def longest_run(keys: Sequence[int], step: int) -> tuple[int, int]:
    """Returns (length, start) of the longest run of keys that equal the keys `step` positions later."""
    best, start, length = 0, 0, 0
    for at in range(len(keys) - step):
        length = length + 1 if keys[at] == keys[at + step] else 0
        if length > best:
            best, start = length, at - length + 1
    return best, start
