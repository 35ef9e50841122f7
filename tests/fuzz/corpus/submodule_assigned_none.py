# Whether a module has a member of the name that is written is guarded.
import torch
from torch import nn

MODULE = nn.Module()


def entry(x):
    MODULE.extra = nn.Linear(3, 3, bias=False) if x.dim() else None
    print(x.shape)


def calls():
    yield (torch.ones(()),)
    yield (torch.ones(2),)
    yield (torch.ones(()),)
