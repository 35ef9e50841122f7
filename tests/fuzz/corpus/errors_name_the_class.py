# An error that names the class of an operand names torch's.
import torch


def entry(x):
    try:
        x + (1, 2)
    except TypeError as error:
        print(error)
    return x + 1


def calls():
    yield (torch.ones(2),)
