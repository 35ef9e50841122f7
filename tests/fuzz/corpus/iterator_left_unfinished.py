# C iterators that are not exhausted survive a break, without the warnings that copying them gives on Python 3.12.
import itertools

import torch

import smelt


def entry(x):
    items = itertools.chain([1, 2], [3, 4])
    x = x + next(items)
    smelt.graph_break()
    for i in items:
        x = x * i
        smelt.graph_break()
    return x, items


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2),)
