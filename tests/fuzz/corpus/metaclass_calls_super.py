# `super().__call__` in a metaclass makes the object once; what its `__init__` does is seen once.
import torch


class Counting(type):
    count = 0

    def __call__(cls, *args):
        cls.count += 1
        return super().__call__(*args)


class Made(metaclass=Counting):
    total = 0

    def __init__(self, t):
        type(self).total += 1
        self.t = t * 2


def entry(x):
    return Made(x).t + Made(x + 1).t, Made.total, Made.count


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2),)
