# An attribute is written by name and through the object's __dict__, and read back in both ways.
import torch


class Box:
    n = 1


BOX = Box()


def entry(x):
    BOX.extra = 3
    BOX.n += 1
    held = BOX.__dict__
    held["extra"] = -1
    first = BOX.extra
    BOX.extra = 5
    return x + BOX.extra, first, dict(held)


def calls():
    for _ in range(3):
        yield (torch.ones(2),)
