import torch

SEEN = []


def entry(a, b):
    SEEN.append("start")
    a.view(-1)[0] = 1
    torch.rand_like(a)
    try:
        a @ b
    except RuntimeError as error:
        print(error)
    try:
        a.copy_(b)
    except RuntimeError as error:
        print(error)
    SEEN.append("end")
    return b.fill_(float("inf"))


def calls():
    yield (torch.ones(2, 3), torch.ones(3, 3).double())
    yield (torch.ones(2, 3), torch.ones(3, 3).long())
    yield (torch.ones(2, 3), torch.ones(5))
