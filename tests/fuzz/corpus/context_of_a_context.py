# An exception that is handled at a break keeps the contexts of its context.
import torch

BOXES = [object()]


class Oops(ValueError):
    pass


def entry(x, items):
    try:
        try:
            raise Oops(1)
        except Oops:
            try:
                print(x + 1)
                raise Oops(next(iter(items), 7))
            except Exception:
                raise KeyError from None
    finally:
        for _ in BOXES[0]:
            pass


def calls():
    yield torch.ones(2), []
    yield torch.ones(2), [3]
