# What a comparison of numbers from tensors gives is returned as a bool.
import torch


def entry(x):
    first, last = x.argmax().item(), x.argmin().item()
    return first > last, (first == 3) | (last > 1), not first < 1, [first != last], x * 2


def calls():
    yield (torch.arange(4.0),)
    yield (-torch.arange(4.0),)
