# backend: eager
import bisect
import collections
import contextlib
import dataclasses
import enum
import functools
import io
import itertools
import logging
import math
import operator
import random
import types
import warnings

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import smelt

logger = logging.getLogger("program")


@dataclasses.dataclass
class Record:
    n: int
    t: object
    items: list = dataclasses.field(default_factory=list)


class Box:
    shared = 1.5
    total = 0
    label = "box"
    registry = []

    def __init__(self, n, t=None):
        self.n = n
        self.t = t

    @classmethod
    def make(cls, t):
        return cls(1, t)

    @staticmethod
    def twice(t):
        return t * 2

    @property
    def area(self):
        return self.n * 2

    @area.setter
    def area(self, value):
        self.n = value // 2

    def value_or(self, t):
        return t * self.n if self.t is None else self.t + t

    def bump(self, by=1):
        pass

    def __call__(self, t):
        pass

    def __add__(self, other):
        return type(self)(self.n + other.n, self.t)

    def __eq__(self, other):
        return isinstance(other, Box) and self.n == other.n

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        yield from self.items

    def __getitem__(self, t):
        return self.value_or(t)

    def __setitem__(self, key, value):
        self.items.append(value)

    def __repr__(self):
        return f"{type(self).__name__}({self.n})"


class Child(Box):
    pass


class Field:
    pass


class Tracked(Box):
    pass


class Counting(type):
    def __call__(cls, *args, **kwargs):
        pass


class Made(Box, metaclass=Counting):
    count = 0

    def __init_subclass__(cls, **kwargs):
        pass


G_COUNT = 1
G_LIST = [1, 2, 3]
G_DICT = {"a": 1, "b": 2}
G_TENSOR = torch.ones(2, 3)
G_BOX = Box(5)
BOXES = [Box(1), Box(2)]


class Proxy:
    pass


class Deferred:
    def __init__(self, n):
        self.n = n

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        found = self.__dict__[name] = self.n + len(name)
        return found


@contextlib.contextmanager
def managed(name):
    print("enter", name)
    try:
        yield (name + "!")
    finally:
        print("leave", name)


def logged(fn):

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        inner.calls += 1
        return fn(*args, **kwargs)

    inner.calls = 0
    return inner


def scaled(by):
    pass


@logged
@functools.lru_cache
def size_of(t):
    return t.numel()


def COUNTED(t):
    return t + size_of(t)


class Layer(nn.Module):
    pass


MODULE = Layer()


def program(t1, n2):
    global G_COUNT
    for i3 in (torch.linspace(-1.0, 2.0, 5).sort().values > 2.5 * n2).nonzero().flatten().tolist():
        torch.ones(2) + torch.ones(3)
        BOXES[0] = BOXES[0]
    BOXES[0] = Tracked(Record(2, torch.zeros(3), [1]).n)
    n4 = 0
    while n4 < 2 and True:
        n4 += 1
        dt5 = {k: v * 2 for k, v in {}.items()}
        G_DICT.clear()
        for vec6 in torch.ones(1).cumsum(0).split(2):
            pass
        else:

            @managed("key".replace("a", "b"))
            def f8(p9):
                if False:
                    return (collections.OrderedDict(a=i3, z=n2), sum([-0.0, 0.001]), p9.reshape(-1), p9, t1, n2)
                return BOXES[0][t1] + p9

            t11 = f8(t1)
    else:

        @dataclasses.dataclass
        class cls13(Record):
            extra: int = Deferred(7).value

            def __post_init__(self):
                self.n = self.n + self.extra
                nonlocal n2
                with contextlib.ExitStack() as s14:
                    for n21 in range(torch.ones(1).shape[0]):
                        s22 = "" * 2
                        G_TENSOR.add_(min(-0.0, 0.001))
                    random.seed(i3)
                    if {1, 2} <= {1, 2}:
                        raise ValueError(f"{n2:>4}|{True!r}")
                with torch.enable_grad():
                    if 2.5 < 1.0:
                        return {"0": Proxy(Box(2, torch.ones(3))), "1": set(), "2": n2, "3": i3, "4": t1}
                    n2 = numpy.arange(3)[functools.reduce(operator.mul, [], 1) % 3].item()

        r23 = cls13(int(-0.0), COUNTED(t1))


entry = program


def calls():
    yield (torch.linspace(2.0, 3.0, 6).reshape(2, 3).clone(), 3)
    yield (torch.linspace(2.0, 3.0, 1).reshape(()).clone().requires_grad_(), 3)
    yield (torch.linspace(2.0, 3.0, 1).reshape(()).clone().requires_grad_(), 3)
