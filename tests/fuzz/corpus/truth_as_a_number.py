# int() of a tensor of booleans is a whole number, also where the value is known.
import torch

LIST = []


def entry(x):
    LIST.append(int(torch.zeros(0).sum() > 0.5))
    LIST.append(int(x[0] > 2))
    return x * 2


def calls():
    yield (torch.linspace(2.0, 3.0, 3),)
    yield (torch.linspace(-2.0, 3.0, 3),)
