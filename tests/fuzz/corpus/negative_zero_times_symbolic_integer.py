import torch


def entry(t, n):
    return t + 1, -0.0 * n, 0.0 * n, n * -0.0, float("inf") * n


def calls():
    yield (torch.ones(2), 3)
    yield (torch.ones(2), 7)
    yield (torch.ones(2), -2)
    yield (torch.ones(2), -5)
