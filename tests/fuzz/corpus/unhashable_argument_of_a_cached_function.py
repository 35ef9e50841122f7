# A cached function refuses what has no hash.
# backend: eager
import functools

import torch


def logged(fn):

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(args, **kwargs)

    return inner


def counted(n):
    for i in range(n):
        yield i


@logged
@functools.lru_cache
def size_of(t):
    pass


def COUNTED(t):
    return size_of(t)


def make():

    def program(t1, vec2):
        items3 = counted(1)

        def inner4(t5=1):
            return {1: i for i in items3}

        t7 = inner4(max(1, t1.sum()))
        g18 = COUNTED(t7)

    return program


entry = make()


def calls():
    yield torch.linspace(0.5, 3.0, 6).reshape(2, 3).clone().requires_grad_()
