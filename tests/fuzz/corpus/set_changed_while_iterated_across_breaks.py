# The iterator over a set from outside outlives graph breaks: it raises when the set has changed its size.
import torch


def entry(x, numbers, way):
    for n in numbers:
        x = x + 1
        with torch.random.fork_rng():
            if way == "pop":
                numbers.pop()
            elif way == "add":
                numbers.add(n + 10)
            x = x + n
    return x


def calls():
    for way in ("pop", "add", "nothing", "pop"):
        for size in (1, 3, 0):
            yield (torch.ones(2), set(range(size)), way)
