# backend: aot_eager
# an operator without a derivative: eager raises when a backward comes to it, and not before
import torch


def program(t):
    print(t.reshape(-1).unique())
    return t.unique(), t * 2


entry = program


def calls():
    yield (torch.linspace(1, 3.0, 3).reshape(1, 3).clone().requires_grad_(),)
