# Globals and attributes are deleted, also those that the function has just made.
import torch

KEPT = 1


class Box:
    pass


def entry(x, box):
    global KEPT, FRESH
    FRESH = 3
    del KEPT, FRESH
    box.extra = 1
    del box.extra
    for name in ("KEPT", "FRESH"):
        print(name in globals())
    try:
        KEPT
    except NameError as error:
        print(error)
    try:
        del KEPT
    except NameError as error:
        print(error)
    KEPT = 2
    return x + KEPT, hasattr(box, "extra")


def calls():
    yield torch.ones(2), Box()
    yield torch.ones(2), Box()
