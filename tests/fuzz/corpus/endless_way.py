# backend: aot_eager
# one way of a branch on a tensor's value has no end; the program never takes it
import torch


def program(v, items):
    if v.sum() > 1e-3:
        y = v + 1
    else:
        items.extend(t for t in items)
        y = v
    if v.sum() < 1e-3:
        while True:
            y = y + 1
    return y, items


entry = program


def calls():
    yield torch.arange(4.0), [torch.zeros(3), torch.ones(3)]
    yield torch.arange(4.0), [torch.ones(3)]
