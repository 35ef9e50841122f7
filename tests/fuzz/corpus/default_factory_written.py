# A missing key gets what the present default_factory makes, which is code of the program.
import collections

import torch

LOG = []


def counted():
    LOG.append("made")
    return [len(LOG)]


def program(t1, dd3):
    held = dd3["b"]
    dd3.default_factory = dict
    return t1 + 1, dd3["a"], held, dd3.copy(), dd3


entry = program


def calls():
    for factory in (list, dict, counted, counted):
        yield torch.ones(2), collections.defaultdict(factory)
