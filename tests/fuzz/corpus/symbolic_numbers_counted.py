import collections

import torch


def entry(t, items):
    t += 1
    return collections.Counter(items)


def calls():
    yield (torch.ones(1, 3), list(range(4)))
    yield (torch.ones(1, 3), [1, 2])
    yield (torch.ones(1, 3), [1, 3])
    yield (torch.ones(1, 3), [1, 1])
