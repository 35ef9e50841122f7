"""Which part of a program comes again and again: equal layers of a model, found by what they compute.

A chain is a value of one layer, the value that has its position in the next one, and so on. Layers need not follow each
other in the program's order: a backward graph computes again what belongs to the layers in one order, and goes through
them in the other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from smelt.loops.forms import form_of, form_of_meta
from smelt.loops.ir import Constant, Extern, Input, LoopProgram, Node, Reduction, Scatter

LEAST_BLOCKS = 14
"""Fewer repeated blocks are not worth looking for."""

MOST_ANCHORS = 4096
"""More externs are not compared with each other."""

KINDS = (1, 2, 3)
"""How many kinds of layers, whose externs are alike, may take turns."""


@dataclass
class Repetition:
    """Blocks `first` to `last`, each of which computes what the one before does, with other operands.

    Attributes:
        positions: of each value of a block, the chain that it belongs to and where it is there.
        block: the number of the block of a value. Values before and after the blocks are not in it.
    """

    positions: dict[str, tuple[list[str], int]]
    block: dict[str, int]
    first: int
    last: int


def find_repetition(program: LoopProgram) -> Repetition | None:
    """The blocks of a program; None where there are few, or where something reads from many of them."""
    if program.after:
        return None
    for kinds in KINDS:  # of layers that take turns, one follows another only after some others
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
        self.users: dict[str, list[str]] = {}
        self.following: dict[str, str] = {}
        self.previous: dict[str, str] = {}
        self.positions: dict[str, tuple[list[str], int]] = {}
        self.block: dict[str, int] = {}

    def form(self, node: Node) -> Hashable:
        """What two values of different blocks must have in common."""
        meta = form_of_meta(node.meta)
        if isinstance(node, (Input, Constant)):
            return type(node), meta
        call = self.program.calls.get(node.name)
        if call is None:
            return object()
        return type(node), meta, form_of(call[0]), call[1], len(node.inputs), tuple(self.results.get(node.name, ()))

    def take_keys(self, names: Iterable[str]) -> None:
        """Number the forms of values: equal ones have the same number."""
        known = self.known
        self.key |= {n: known.setdefault(self.form(self.nodes[n]), len(known)) for n in names if n not in self.key}

    def seed(self, kinds: int) -> tuple[str, str] | None:
        """Two values in the middle of the blocks, the second of which has the position of the first in the next block.

        Args:
            kinds: how often externs are the same again before a block of the same kind comes.
        """
        anchors = [n for n, node in self.nodes.items() if isinstance(node, Extern)]
        if len(anchors) < LEAST_BLOCKS:
            anchors = [n for n, node in self.nodes.items() if isinstance(node, (Reduction, Scatter))]
        if not LEAST_BLOCKS <= len(anchors) <= MOST_ANCHORS:
            return None
        self.take_keys(anchors)
        keys = [self.key[name] for name in anchors]
        best, start, period = 0, 0, 0
        for step in range(1, len(keys) // LEAST_BLOCKS + 1):
            length, begins = longest_run(keys, step)
            if length + step > best and length + step >= LEAST_BLOCKS * step:
                best, start, period = length + step, begins, step
        period *= kinds
        if not best or best < LEAST_BLOCKS * period:
            return None
        at = start + (best - period) // 2
        return anchors[at], anchors[at + period]

    def pair(self, one: str, other: str) -> bool:
        """Follow operands and users from two values to all at each other's positions; False if that is unclear."""
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
        return len(self.positions) == len(self.following.keys() | self.previous.keys())  # else some follow each other

    def find_positions(self) -> None:
        """The chains, from values that follow no other."""
        for first in [name for name in self.following if name not in self.previous]:
            chain, following = [first], self.following.get(first)
            while following is not None:
                chain.append(following)
                following = self.following.get(following)
            self.positions.update((name, (chain, at)) for at, name in enumerate(chain))

    def users_of(self, a: str, b: str) -> list[tuple[str, str]]:
        """Users of two values at each other's positions: which compute the same, from these as the same operand."""
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
        """Number the blocks. Where one ends is a matter of choice: near the seed its neighbours have its number."""
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
        """The blocks around the seed between which nothing differs."""
        broken = set[int]()
        """Blocks that do not go over into the next one as they should."""
        for name, block in self.block.items():
            other = self.following.get(name)
            if other is None or not self.alike(name, other):
                broken.add(block)
            if name not in self.previous:
                broken.add(block - 1)
        at = self.block[seed]
        first = max((b for b in broken if b < at), default=at - 1) + 1
        last = min((b for b in broken if b >= at), default=at)
        if last - first + 1 < LEAST_BLOCKS:
            return None
        return Repetition(self.positions, self.block, first, last)

    def alike(self, a: str, b: str) -> bool:
        """Whether what two values read, and who reads them, have each other's positions or are the same."""
        following = self.following
        inputs = zip(self.nodes[a].inputs, self.nodes[b].inputs, strict=True)
        if not all(following.get(x) == y or (x == y and x not in self.block) for x, y in inputs):
            return False
        return {following.get(x) for x in self.users[a]} == set(self.users[b])


def longest_run(keys: Sequence[int], step: int) -> tuple[int, int]:
    """How long keys equal those so many positions later without a break, at most, and where that begins."""
    best, start, length = 0, 0, 0
    for at in range(len(keys) - step):
        length = length + 1 if keys[at] == keys[at + step] else 0
        if length > best:
            best, start = length, at - length + 1
    return best, start
