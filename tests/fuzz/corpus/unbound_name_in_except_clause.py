import torch


def entry(t):
    try:
        raise Oops
    except Exception as error:
        t.sum().item()
        print(error.__context__)
        return nothing


def calls():
    yield (torch.ones(2, 3),)
    yield (torch.ones(2, 3),)
