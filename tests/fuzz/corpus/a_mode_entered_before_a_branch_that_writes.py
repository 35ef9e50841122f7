# A mode is entered, and then the way of a branch on a tensor that is not taken writes to an argument: what has no
# memory (the entered mode) was asked for its memory.
import torch


def entry(x, vector):
    with torch.inference_mode(False):
        pass
    if vector.sum():
        return []
    x[()] += 1


def calls():
    yield torch.linspace(0.5, 3.0, 3), torch.arange(7.0)
    yield torch.linspace(0.5, 3.0, 3), torch.zeros(7)
