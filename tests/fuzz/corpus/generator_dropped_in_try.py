# A generator that is dropped where `except GeneratorExit` covers it runs that clause.
import torch


def held(t):
    try:
        t = yield t
    except GeneratorExit:
        print("left")
        raise


def handled(t):
    try:
        t = yield t
    except ValueError:
        print("never")


def entry(x):
    other = handled(x)
    y = next(other)
    return y + next(held(x))


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2),)
