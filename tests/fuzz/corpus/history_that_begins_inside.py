# backend: aot_eager
# A result that comes from a leaf of the function requires gradients.
import torch


def entry(x):
    leaf = torch.full((2, 3), 0.5)
    leaf.requires_grad_()
    return 2 + leaf, x


def calls():
    yield (torch.ones(3),)
    yield (torch.ones(3).requires_grad_(),)
