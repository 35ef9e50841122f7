# What an operator refuses whatever its sizes are is raised where it stands, after the writes before it.
import torch

G_TENSOR = torch.ones(2, 3)
COUNT = [0]


def entry(t):
    G_TENSOR.view(-1)[0] += 1
    wide = t.repeat(2)
    try:
        if wide[t].sum():
            pass
    finally:
        COUNT[0] += 1


def calls():
    yield (torch.zeros(0),)
    yield (torch.arange(4.0),)
    yield (torch.arange(5.0),)
