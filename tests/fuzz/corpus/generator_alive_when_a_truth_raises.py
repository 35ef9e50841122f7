# A condition that raises keeps the frame in its traceback, and with it a generator that has begun.
import torch


def entry(x):
    def generate():
        try:
            yield 1
        finally:
            print("closed")

    held = generate()
    next(held)
    return 1 if x else None


def calls():
    yield (torch.zeros(0),)
    yield (torch.ones(1),)
    yield (torch.zeros(0),)
