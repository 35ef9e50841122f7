# A handler that formats the message raises where the call stands: a context manager around it is left.
import contextlib
import logging

import torch

logger = logging.getLogger("program")


@contextlib.contextmanager
def managed(name):
    try:
        yield 1
    finally:
        print("leave", name)


def entry(x, found):
    @managed("a")
    def inner(y):
        logger.error("%d", found)
        return y

    return inner(-x)


def calls():
    yield torch.tensor(0.5, requires_grad=True), repr
    yield torch.tensor(0.5, requires_grad=True), 3
    yield torch.tensor(0.5, requires_grad=True), (1, 2)
