# The text of a container that holds a random number, and of one beside a tensor.
import random

import torch


def entry(x):
    f = random.random()
    print((f,), [f, 1], {1: f}, {f}, {"a": (f, x.shape[0])}, sep="|")
    print(f"{f} {x.sum()}")
    print((f, x.sum()))
    s = str((f, 2))
    return x * 2 if len(s) > 3 else x, s


def calls():
    for n in (3, 4, 5):
        random.seed(n)
        yield (torch.ones(n),)
