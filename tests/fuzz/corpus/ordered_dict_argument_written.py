# Items of an OrderedDict from outside are written through its own methods, or its order would not know them.
import collections

import torch

HELD = collections.OrderedDict(b=1)


def entry(x, given):
    given["a"] = 1
    given.move_to_end("a", last=False)
    HELD["c"] = 2
    HELD.move_to_end("b")
    return x + 1, list(given), list(HELD)


def calls():
    yield torch.ones(2), collections.OrderedDict()
    yield torch.ones(2), collections.OrderedDict(z=3)
