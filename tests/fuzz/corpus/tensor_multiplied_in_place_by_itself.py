# Eager writes it, and says what is wrong when a backward comes to it.
import torch


def entry(weight):
    t = weight * 2
    print(t.sum().item())
    t.mul_(t)
    try:
        t.sum().backward()
    except RuntimeError as error:
        print(str(error)[:60])
    return t.detach()


def calls():
    yield (torch.linspace(-1.0, 3.0, 3).requires_grad_(),)
