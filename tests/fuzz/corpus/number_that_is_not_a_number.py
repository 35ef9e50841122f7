# backend: aot_eager
import torch


def entry(t, f):
    t.view(-1)[0] = float("inf") * 0 + t.sum().item()
    return t * (f * float("inf"))


def calls():
    yield (torch.ones(2, 3), 1.0)
    yield (torch.ones(2, 3), 2.0)
    yield (torch.full((2, 3), 2.0), 3.0)
