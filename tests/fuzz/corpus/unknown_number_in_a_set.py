# A number that only values tell is hashed.
import torch


def entry(x):
    count = (torch.cat([x, x]) > 1).sum().item()
    return {count, 3}, {count: x}, {count for _ in range(2)}


def calls():
    yield (torch.zeros(0),)
    yield (torch.arange(4.0),)
