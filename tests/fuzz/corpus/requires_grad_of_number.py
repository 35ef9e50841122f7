# backend: aot_eager
# a comparison of numbers that change decides whether a tensor asks for gradients
import torch

WEIGHT = torch.full((3,), 0.5)
COUNT = [0]


def program(v, n):
    COUNT[0] += 1
    WEIGHT.requires_grad_(COUNT[0] < 3)
    return v.clone().requires_grad_(n < 2), v.clone().requires_grad_(requires_grad=n < 3)


entry = program


def calls():
    for n in (1, 2, 3, 1, 4):
        yield torch.arange(3.0), n
