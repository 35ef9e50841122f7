# A comparison of a number that became symbolic is a plain flag to an operator.
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


MODULE = Layer()


def entry(t):
    for i in [2, 1, 3]:
        try:
            torch.add(t, t, out=torch.empty(0))
            MODULE.weight.requires_grad_(i > 2)
        finally:
            continue


def calls():
    yield (torch.ones(3).requires_grad_(),)
    yield (torch.ones(3).requires_grad_(),)
    yield (torch.ones(1),)
