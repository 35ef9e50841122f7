# `items += [x]` costs the same for long lists: capture does not look through what the list holds.
import torch

ITEMS = [1, 2, 3]


def program(t, n):
    global ITEMS
    for _ in range(12):
        for _ in list(ITEMS):
            ITEMS += [n]
    return t + len(ITEMS)


entry = program


def calls():
    yield torch.ones(2), 0
