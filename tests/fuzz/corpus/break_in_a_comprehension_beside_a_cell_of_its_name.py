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


class Oops(ValueError):
    pass


class Box:
    total = 0
    label = "box"


class Counting(type):
    pass


settings = 1


@functools.total_ordering
class Version:
    __slots__ = ()

    def __init__(self, of):
        self.of = of

    def __lt__(self, other):
        pass


def tally(n, seen=[], *, step=1):
    return 1


def counted(n):
    1
    return n


def program(t17, t18, vec19, d20):
    match 1:
        case {"b": k, **rest}:
            [1 for f in [lambda: i for i in [1, 2]]]
    d20[1] = [int(vec19.sum()) for i in range(1)]
    raise Oops
    pass


entry = program


def calls():
    shared = torch
    yield (shared, shared, torch.linspace(1, 2.0, 5), dict(a=1, key=2))
