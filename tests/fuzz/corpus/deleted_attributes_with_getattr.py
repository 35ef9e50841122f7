# Deleting an attribute asks the object, not its __getattr__; slots and __dict__ included.
import torch


class Child:
    __slots__ = ("slot", "__dict__")

    def __getattr__(self, name):
        raise AttributeError


def entry(x, box):
    box.slot = 1
    del box.slot
    for name in ("extra", "kept"):
        try:
            delattr(box, name)
        except AttributeError as error:
            print(error)
    box.__dict__["late"] = 1
    del box.late
    return x + 1, hasattr(box, "slot")


def calls():
    for _ in range(3):
        box = Child()
        box.kept = 1
        yield torch.ones(2), box
