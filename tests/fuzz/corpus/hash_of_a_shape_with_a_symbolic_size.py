# A shape with a symbolic size has a hash.
# backend: eager
import numpy
import torch

G_TENSOR = torch.ones(2, 3)


class Recorder:
    def __init__(self, name, swallow=False):
        pass

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        return 1


def program(t5, q6):
    with Recorder(1, swallow=True):
        hash(t5.shape)
        G_TENSOR.add_(0.5)


entry = program


def calls():
    yield (torch.linspace(2.0, 3.0, 3).reshape(1, 3).clone(), 1)
    yield (torch.linspace(2.0, 3.0, 6).reshape(2, 3).clone().long(), 1)
