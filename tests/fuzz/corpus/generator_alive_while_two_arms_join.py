# A branch on a tensor's number is joined while a generator of the capture is held: it led to the capture itself.
import contextlib
import functools

import torch


@functools.total_ordering
class Version:
    def __init__(self, of):
        self.of = of

    def __lt__(self, other):
        return other.of


@contextlib.contextmanager
def managed(name):
    yield 1


def entry(t):
    with managed(1):
        for _ in {"a": 1, "": 7}:
            n = 1
            for m in t.reshape(1).long().tolist():
                if Version(n) < Version(m):
                    pass
    return t + n


def calls():
    yield (torch.linspace(0.5, 3.0, 1).reshape(()).clone(),)
