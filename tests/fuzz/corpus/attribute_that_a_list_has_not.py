# A write that fails is not put off until after what the program prints behind it.
import torch

TENSOR = torch.ones(2, 3)


def entry(x):
    items = TENSOR.flatten().tolist()
    items.tag = 1
    print("too far")
    return x


def calls():
    yield (torch.ones(2),)
