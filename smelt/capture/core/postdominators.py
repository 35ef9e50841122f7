"""The instruction at which the two arms of a branch join: the nearest one on every path to the function's end.

Paths that end in `raise` are ignored. The joins are the immediate postdominators of the instructions, computed as in
Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm, 2001.
"""

from __future__ import annotations

from smelt.capture.core.bytecode import Decoded
from smelt.capture.core.liveness import successors

RETURNS = -1
"""Result of `join_of` if the arms join only when the function returns."""

_ENDS = ("RETURN_VALUE", "RETURN_CONST")


def join_of(decoded: Decoded, branch: int) -> int | None:
    """The index of the instruction where the arms of the jump at `branch` join, or RETURNS; None if neither arm
    returns."""
    if decoded.joins is None:
        decoded.joins = _postdominators(decoded)
    return decoded.joins[branch]


def _postdominators(decoded: Decoded) -> list[int | None]:
    count = len(decoded.names)
    after = [[count] if decoded.names[at] in _ENDS else successors(decoded, at) for at in range(count)]
    order = _backwards(after, count)
    rank = {node: position for position, node in enumerate(order)}
    found: dict[int, int] = {count: count}

    def meet(a: int, b: int) -> int:
        while a != b:
            while rank[a] > rank[b]:
                a = found[a]
            while rank[b] > rank[a]:
                b = found[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            ready = [n for n in after[node] if n in found]
            new = ready[0]
            for each in ready[1:]:
                new = meet(new, each)
            if found.get(node) != new:
                found[node] = new
                changed = True
    return [None if at not in found else RETURNS if found[at] == count else found[at] for at in range(count)]


def _backwards(after: list[list[int]], end: int) -> list[int]:
    """The nodes from which the end can be reached, in reverse postorder from there."""
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for node, following in enumerate(after):
        for each in following:
            before[each].append(node)
    order: list[int] = []
    seen = {end}
    waiting = [(end, iter(before[end]))]
    while waiting:
        node, rest = waiting[-1]
        nearest = next((n for n in rest if n not in seen), None)
        if nearest is None:
            order.append(node)
            waiting.pop()
        else:
            seen.add(nearest)
            waiting.append((nearest, iter(before[nearest])))
    return order[::-1]
