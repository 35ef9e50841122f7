import types

import torch

settings = types.SimpleNamespace()


def entry(t, items):
    items.append(1)
    for _, n in enumerate(items):
        t.unsqueeze_(0)
    for n in reversed(items):
        print(n, t.sum().item())
    try:
        settings.size = n
        del settings.size
        return settings.size
    except AttributeError as error:
        return str(error), t


def calls():
    yield (torch.ones(2), [])
    yield (torch.ones(2), [3, 4])
