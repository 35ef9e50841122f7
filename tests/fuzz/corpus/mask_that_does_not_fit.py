# A mask of another length than the tensor is refused, also where its true elements all lie in the tensor.
import torch


def entry(t, mask, weights):
    try:
        chosen = t[mask]
    except IndexError as error:
        return mask + 1, str(error)
    t[weights > 0]
    return mask + 1, chosen


def calls():
    mask = torch.tensor([True, False, True, False])
    yield (torch.arange(4.0), mask, torch.ones(4))
    yield (torch.arange(7.0), mask, torch.ones(4))
    yield (torch.arange(3.0), mask, torch.ones(3))
    yield (torch.arange(4.0), mask, torch.tensor([1.0, 0.0, 0.0]))
    yield (torch.zeros(0), mask, torch.ones(0))
    yield (torch.arange(4.0), mask, torch.zeros(7))
