# An operator that reads the memory that it writes to is refused before its shapes are looked at.
import torch


def entry(x):
    try:
        x[0].copy_(x)
    except RuntimeError as error:
        print(error)
    return x


def calls():
    yield (torch.linspace(-1.0, 3.0, 3).reshape(1, 3).clone(),)
