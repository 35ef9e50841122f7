# A tensor where torch wants True or False is a TypeError, with torch's words.
import torch

TENSOR = torch.ones(3)


def entry(x):
    try:
        with torch.set_grad_enabled(x.sum()):
            pass
    except TypeError as error:
        print(error)
    try:
        TENSOR.requires_grad_(x.sum() > 1)
    except TypeError as error:
        print(error)
    return x + 1


def calls():
    yield (torch.ones(2),)
