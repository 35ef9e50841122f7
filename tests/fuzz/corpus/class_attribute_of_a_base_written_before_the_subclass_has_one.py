# A subclass gets an attribute of its own whose value is, at the next call, the very object that its base holds.
import torch


class Box:
    total = 0

    def __init__(self):
        type(self).total += 1


class Child(Box):
    pass


def entry(x):
    Box.total += -1
    Child()
    Box()
    return x + 1, Box.total, Child.total, "total" in vars(Child)


def calls():
    for _ in range(3):
        yield (torch.ones(2),)
