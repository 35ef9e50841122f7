# The body of a class statement runs once a call, also where it raises.
import torch

SEEN = []


def broken(x):
    class Inner:
        n = SEEN.append(1)
        m = undefined


def entry(x):
    try:
        broken(x)
    except NameError as error:
        SEEN.append(str(error))

    class Made:
        n = SEEN.append(2)
        scaled = x * 2

    return Made.scaled + len(SEEN), SEEN


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2),)
