# A function that draws random numbers is looked through before it runs as a whole; a variable of its may have no value.
# backend: eager
import random

import torch

import smelt


def program(x, n):
    for i in (torch.linspace(-1.0, 2.0, 5) > 2.5 * n).nonzero().flatten().tolist():
        pass

    def drawing():
        random.seed(i)
        return random.random()

    smelt.graph_break()
    return x + drawing()


entry = program


def calls():
    yield torch.ones(2), 3
    yield torch.ones(2), 0
