# What a call raises that is made after the graph has the exception as its context that the program handles there.
import logging

import torch

logger = logging.getLogger("program")


class Oops(Exception):
    pass


def entry(t, held):
    try:
        raise Oops("first")
    except Exception:
        t = t + 1
        logger.error("%d", held)
    return t


def calls():
    yield (torch.ones(3), 1)
    yield (torch.ones(3), "text")
