# A variable that is not bound cannot be deleted, also where the instruction is done between two graphs.
import itertools

import torch

STREAM = iter(range(50))


def local(t, n):
    for _ in t.flatten().nonzero().flatten().tolist():
        try:
            del n
            torch.rand_like(t)
        except Exception as error:
            print(error, *itertools.islice(STREAM, 2))
    return t


def cell(t, n):
    def read():
        return n

    for _ in t.flatten().nonzero().flatten().tolist():
        try:
            del n
            torch.rand_like(t)
        except Exception as error:
            print(error, *itertools.islice(STREAM, 2))
    return t


def program(t, n):
    return local(t, n), cell(t, n)


entry = program


def calls():
    yield torch.ones(3), 2
    yield torch.ones(3), 0
