# A call made after the graph has no exception as its context once the except clause, where the frame went on, has ended.
import logging

import torch

logger = logging.getLogger("program")


class Oops(Exception):
    pass


def entry(t, held):
    try:
        raise Oops("first")
    except Exception:
        print(t)
        t = t + 1
    t = t * 2
    logger.error("%d", held)
    return t


def calls():
    yield (torch.ones(3), 1)
    yield (torch.ones(3), "text")
