# What is asked of an object's `__dict__` sees the attributes that the program has written by then.
import torch


class Box:
    def __init__(self):
        self.n = 1


def entry(box, t):
    held = vars(box)
    before = len(held), "extra" in held
    setattr(box, "extra", t + 1)
    after = len(held), "extra" in box.__dict__, "n" in held, held["n"]
    box.n = 5
    named = vars(box)["n"], vars(box).get("n")
    del box.n
    return before, after, named, "n" in held, len(vars(box)), bool(vars(box)), box.extra


def calls():
    yield (Box(), torch.ones(2))
    yield (Box(), torch.ones(2))
