import torch

SEEN = []


def entry(t):
    try:
        for row in t:
            n = round(row.sum().item())
            SEEN.append(n)
    except AttributeError:
        SEEN.append("error")


def calls():
    yield (torch.linspace(2.0, 3.0, 6).reshape(2, 3).clone(),)
    yield (torch.linspace(1.0, 7.0, 6).reshape(2, 3).clone(),)
