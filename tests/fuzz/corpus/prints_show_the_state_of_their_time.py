# Printed and logged containers and objects are shown as they were at the time of the call, in order.
import contextlib
import io
import logging

import torch

LIST = [1, 2]


class Box:
    n = 1

    def __repr__(self):
        return f"Box({self.n})"


BOX = Box()


def entry(x, given):
    print(LIST, given)
    LIST.append(3)
    given.append(LIST)
    print(LIST, given, {"box": BOX}, (BOX,), end="|")
    BOX.n += 1
    print(BOX, [BOX])
    hidden = io.StringIO()
    with contextlib.redirect_stdout(hidden):
        print("hidden")
    logging.getLogger("program").warning("list %s", LIST)
    LIST.append(5)
    del LIST[0]
    return x + 1, hidden.getvalue()


def calls():
    yield torch.ones(2), [1]
    yield torch.ones(2), []
