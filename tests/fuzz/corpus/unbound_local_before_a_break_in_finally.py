import random

import torch


def entry(t, flag):
    if flag:
        kept = 1
    try:
        torch.manual_seed(1)
        kept = kept
    finally:
        print(random.random())
    return t + kept


def calls():
    yield (torch.ones(2), False)
    yield (torch.ones(2), True)
    yield (torch.ones(2), False)
