# backend: aot_eager
import numpy
import torch

HOLD = {}


def program(t1, vec2, s3):
    n4, *items5 = [1]

    def f6(p7, n8):
        HOLD["x"] = p7
        return p7 + 1

    t14 = f6(n4 + t1, 1)
    t14.zero_()
    return t14


entry = program


def calls():
    yield torch.linspace(1, 3.0, 3).reshape(3).clone().requires_grad_()
