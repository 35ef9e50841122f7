# A buffer is registered, assigned as an attribute and looked at in the table: the last write counts.
import torch
from torch import nn

MODULE = nn.Module()
MODULE.register_buffer("state", torch.zeros(3))


def register_first(x):
    MODULE.register_buffer("state", MODULE.state + 1)
    MODULE.state = MODULE.state * 2


def assign_first(x):
    MODULE.state = MODULE.state * 2 + 1
    MODULE.register_buffer("state", MODULE.state + x)
    return MODULE.state


def through_the_table(x):
    MODULE.state = MODULE.state + 1
    held = MODULE._buffers["state"]
    MODULE._buffers["state"] = held * 2
    return held, MODULE.state


def deleted(x):
    held = MODULE.state
    del MODULE.state
    MODULE.register_buffer("other", held + 1)
    MODULE.register_buffer("state", held + 2)
    return sorted(MODULE._buffers)


def refused(x):
    try:
        MODULE.state = 3
    except TypeError as error:
        return str(error)


def entry(x):
    out = [f(x) for f in (register_first, assign_first, through_the_table, deleted, refused)]
    return out, x + MODULE.state


def calls():
    for _ in range(3):
        yield (torch.ones(3),)
