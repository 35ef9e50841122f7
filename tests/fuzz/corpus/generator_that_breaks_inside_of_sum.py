# A generator that C code consumes breaks at once: it is still where it was when the call is made in earnest.
import torch


class Box:
    total = 0

    def __init__(self, n, t=None):
        self.n = n
        type(self).total += 1


def entry(t):
    Box(7, t)

    def f(p):
        _ = yield p + 1

        class Made:
            def __init__(self, **given):
                vars(self).update(given)

        Made(a=Box(2, torch.ones(3)).n)

    g = f(t)
    next(g)
    return sum(g, t)


def calls():
    for _ in range(3):
        yield (torch.ones(3),)
