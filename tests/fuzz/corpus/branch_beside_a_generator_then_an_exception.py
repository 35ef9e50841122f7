# backend: aot_eager
# different
# call 0, globals:
#   eager    ....__dict__', (8, 'dict', (('str', 'label'), ('str', 'child')), (('str', 'total'), ('int', '2')))), ('Counting', ('class', 'Counting')), ('Counting.__dict__', (9, 'dict')), ('Made', ('class', 'Made')), ('Made.__dict__', (10, 'dict', (('str', 'count'), ('int', '1')))), ('G_LIST', (11, 'list', ('int', '
#   compiled ....__dict__', (8, 'dict', (('str', 'label'), ('str', 'child')))), ('Counting', ('class', 'Counting')), ('Counting.__dict__', (9, 'dict')), ('Made', ('class', 'Made')), ('Made.__dict__', (10, 'dict', (('str', 'count'), ('int', '1')))), ('G_LIST', (11, 'list', ('int', '1'), ('int', '2'), ('int', '3'))),
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

import numpy
import torch


class Box:
    shared = 1.5
    total = 0

    def __init__(self, n, t=None):
        type(self).total += 1


class Child(Box):
    pass


def program(t5, vec6):
    gen7 = (t for t in [])
    n8 = 0
    while n8 < 1:
        n8 += 1
        f9 = t5.sum().item()
        if vec6.sum() > f9:
            break
    else:
        Child(1)
    with 1:
        pass


entry = program


def calls():
    yield (torch.linspace(1, 3.0, 6).reshape(2, 3).clone(), torch.arange(4.0))
