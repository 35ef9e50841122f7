# An operation that fails only at run time: the function's own handlers and what it did before come out as in eager.
import torch

LOG = []


def entry(x, i, *rest, key=2, **named):
    LOG.append("begun")
    y = x * 2
    try:
        y = y + x[i]
    except IndexError as error:
        LOG.append(type(error).__name__)
    torch.add(x, y.sum(), out=torch.empty(0))
    with_rest = [r + key for r in rest]
    if x.sum() > 100:
        return y
    LOG.append("middle")
    for n in range(2):
        x[i + n]
        LOG.append(n)
    return y, with_rest


def calls():
    yield torch.ones(3), torch.tensor(0), 1
    yield torch.ones(3), torch.tensor(7), 1
    yield torch.ones(3), torch.tensor(2), 1, 2
