# A global that is not there cannot be deleted, also where the instruction is done between two graphs.
import torch

COUNT = 1


def program(t):
    global COUNT
    with torch.random.fork_rng():
        del COUNT
        return t + 1


entry = program


def calls():
    yield (torch.ones(2),)
    yield (torch.ones(2),)
