# A class attribute that the function wrote on the base is read through a subclass and through instances.
import torch


class Box:
    total = 0
    registry = []

    def __init__(self):
        type(self).total += 1


class Child(Box):
    pass


def entry(x):
    Box(), Child(), Box()
    Box.registry = [1]
    Child().registry.append(2)
    return x + Box.total, Child.total, Child().total, Box.registry


def calls():
    yield (torch.ones(3),)
    yield (torch.ones(3),)
