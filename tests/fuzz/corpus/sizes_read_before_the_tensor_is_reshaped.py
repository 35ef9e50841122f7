# What a frame read of a tensor's sizes is what they were, also where the operation that breaks the graph changes them.
import torch


def entry(x):
    count, rows = x.numel(), x.shape[0]
    x.t_()
    return count, [rows, rows + 1], x.shape[0] > 2


def calls():
    for rows in (1, 2, 4, 6):
        yield (torch.linspace(-1.0, 3.0, 3 * rows).reshape(rows, 3).clone(),)
