# Joining containers from outside hands on the very objects in them, also those that hold containers themselves.
import collections
import itertools

import torch


class Box:
    def __init__(self, n):
        self.items = [n]


def entry(x, n):
    held = vars(Box(n))
    one, listed, named = (held,), [held], {0: held}
    torch.random.fork_rng().__enter__()
    cut, more, filled = [1, 2, 3], [1], {1: 0}
    cut[1:2] = listed
    more += one
    more.extend(one)
    filled |= named
    filled.update(named)
    twice = one * 2
    one *= 2
    return (
        (held, twice, one, one + twice, listed + listed, cut, more, filled),
        (named | {3: 4}, {**named}, dict(named), dict(named.items()), dict(zip([0], named.values(), strict=True))),
        (sum([one], ()), list(one), collections.deque(one), list(itertools.chain(one, listed)), listed.copy()),
        (sorted(one, key=len), max(one, key=len), next(zip(one, one, strict=True)), list(named.values())),
    )


def calls():
    yield (torch.ones(1), 0)
    yield (torch.ones(1), 1)
