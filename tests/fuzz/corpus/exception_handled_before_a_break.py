import contextlib

import torch

G_LIST = []


@contextlib.contextmanager
def collecting():
    found = []
    try:
        yield found
    except ValueError as error:
        found.append(str(error))


def entry(t):
    with collecting() as G_LIST:
        for n21 in [0, 1]:
            torch.manual_seed(3)
            try:
                _ = 1 // n21
                raise ValueError("")
            finally:
                G_LIST.remove(n21)
    torch.ones(2) + torch.ones(3)


def calls():
    yield (torch.ones(3),)
    yield (torch.ones(3),)
