# Random numbers are drawn also when their values are not used.
import torch


def entry(x):
    for _ in range(3):
        y = torch.rand_like(x)
    torch.nn.functional.dropout(x, 0.5)
    return y


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2, requires_grad=True),)
