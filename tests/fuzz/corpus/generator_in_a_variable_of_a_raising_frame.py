# A generator that nobody reads from a variable again, in a frame that raises: the traceback keeps it.
import torch

import smelt


def broken(x):
    smelt.graph_break()
    return x


def left(x):
    try:
        x = yield x
    except GeneratorExit:
        print("left")


def entry(x):
    g = left(x)
    next(g)
    return g(broken(x))


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2),)
