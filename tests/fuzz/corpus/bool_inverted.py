# Python 3.12 warns once of `~` on a bool: not while a program is captured.
import torch


def program(t, flag):
    return t + ~flag, ~t.requires_grad


entry = program


def calls():
    yield torch.ones(3), True
    yield torch.ones(3), False
    yield torch.ones(3), 3
