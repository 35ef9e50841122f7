# A compiled function compiles another one.
import torch

import smelt

TENSOR = torch.ones(2, 3)


def entry(x):
    y = x * 2
    inner = smelt.compile(lambda t: t + y, backend="eager")
    TENSOR[0] = 1
    return inner, inner(x) + inner(x + 1), y


def calls():
    yield (torch.ones(2, 3),)
    yield (torch.ones(2, 3),)
