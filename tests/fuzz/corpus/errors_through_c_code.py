# What interpreted code raises while C code runs it has no exception of the compiler as its context.
import torch


def numbers(n):
    yield 1
    raise ValueError(n)


class Rows:
    def __getitem__(self, i):
        if i > 1:
            raise KeyError(i)
        return i


def entry(x, n):
    for run in (lambda: sum(numbers(n)), lambda: list(Rows()), lambda: max([1, 2], key=lambda v: missing)):
        try:
            run()
        except Exception as error:
            print(type(error).__name__, error, error.__context__, error.__suppress_context__)
    return x, sum(numbers(n))


def calls():
    yield torch.ones(2), 1
    yield torch.ones(2), 2
