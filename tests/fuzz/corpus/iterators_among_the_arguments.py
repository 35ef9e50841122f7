# An iterator that the caller made is used up once, where the function uses it.
import collections

import torch


def generate(t):
    print("begun")
    try:
        for i in range(3):
            yield t * i
    finally:
        print("ended")


def entry(x, a, b, c, d, e):
    print("called")
    total = sum(a, x)
    items = [1]
    items += b
    items[1:2] = c
    paired = list(zip(d, items))
    return total, items, paired, {0}.union(e)


def calls():
    for _ in range(2):
        yield torch.ones(2), generate(torch.ones(2)), iter([1, 2]), iter([3, 4]), (i for i in range(3)), iter([5])
