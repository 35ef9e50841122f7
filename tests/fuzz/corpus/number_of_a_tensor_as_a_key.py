# A number that a tensor tells is a key of a dict and a value beside it.
import torch


def entry(v):
    n = (v > 1).sum().item()
    return [x for x in (dict(a=1) | {k: n for k in "a"}).items()], {n: 3, 5: n}, v + n


def calls():
    for scale in (1.0, 0.5, -1.0):
        yield (torch.arange(4.0) * scale,)
