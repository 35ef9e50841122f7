# A dictionary from outside that was written before a branch: an item of one way only is there after that way only.
import torch

HOLD = {}


def entry(x):
    HOLD.setdefault("l", [])
    if x.sum():
        pass
    else:
        HOLD["x"] = torch.ones(2, 3)
    return x + 1


def calls():
    yield (torch.ones(3),)
    yield (torch.zeros(3),)
