"""The definitions that programs use: each is written into a program only when the program names it."""

from __future__ import annotations

import re

HEADER = """\
import bisect, collections, contextlib, dataclasses, enum, functools, io, itertools, logging, math, operator, random
import types, warnings
import numpy, torch
import torch.nn.functional as F
from torch import nn
import smelt
logger = logging.getLogger("program")
"""

DEFINITIONS = {
    "G_COUNT": "G_COUNT = 1",
    "G_OTHER": "G_OTHER = None",
    "G_LIST": "G_LIST = [1, 2, 3]",
    "G_DICT": "G_DICT = {'a': 1, 'b': 2}",
    "G_TENSOR": "G_TENSOR = torch.ones(2, 3)",
    "G_BOX": "G_BOX = Box(5)",
    "BOXES": "BOXES = [Box(1), Box(2)]",
    "FUNCS": "FUNCS = []",
    "HOLD": "HOLD = {}",
    "STREAM": "STREAM = iter(range(5))",
    "settings": "settings = types.SimpleNamespace(size=2, rate=0.5)",
    "Point": "Point = collections.namedtuple('Point', 'x y')",
    "Oops": """
class Oops(ValueError):
    def __init__(self, code):
        super().__init__(f'oops {code}')
        self.code = code""",
    "Color": """
class Color(enum.Enum):
    RED = 1
    BLUE = 2""",
    "Record": """
@dataclasses.dataclass
class Record:
    n: int
    t: object
    items: list = dataclasses.field(default_factory=list)""",
    "Box": """
class Box:
    shared = 1.5
    total = 0
    label = 'box'
    registry = []
    def __init__(self, n, t=None):
        self.n = n
        self.t = t
        self.items = [n]
        type(self).total += 1
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
        self.n += by
        return self.n
    def __call__(self, t):
        self.bump()
        return t + self.n
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
        return f'{type(self).__name__}({self.n})'""",
    "Child": """
class Child(Box):
    label = 'child'
    def __init__(self, n, t=None):
        super().__init__(n + 1, t)
        self.depth = 1
    def value_or(self, t):
        return super().value_or(t) - 1
    def __getattr__(self, name):
        if name == 'lazy':
            return 42
        raise AttributeError(name)""",
    "Slotted": """
class Slotted(Box):
    __slots__ = ('extra',)
    def bump(self, by=1):
        self.extra = by
        return super().bump(by)""",
    "Field": """
class Field:
    def __set_name__(self, owner, name):
        self.name = '_' + name
    def __get__(self, held, owner=None):
        if held is None:
            return self
        held.items.append(1)
        return held.__dict__.get(self.name, 0)
    def __set__(self, held, value):
        print('set', self.name, value)
        held.__dict__[self.name] = value""",
    "Tracked": """
class Tracked(Box):
    noisy = Field()
    @functools.cached_property
    def lazy_area(self):
        print('computed')
        return self.n * 3
    def __setattr__(self, name, value):
        if name == 'extra':
            value = [value]
        super().__setattr__(name, value)
    def __getattribute__(self, name):
        if name == 'label':
            return 'tracked'
        return super().__getattribute__(name)""",
    "Proxy": """
class Proxy:
    def __init__(self, of):
        self.__dict__['of'] = of
    def __getattr__(self, name):
        return getattr(self.of, name)
    def __setattr__(self, name, value):
        setattr(self.of, name, value)
    def __delattr__(self, name):
        delattr(self.of, name)
    def __call__(self, *args):
        return self.of(*args)
    def __len__(self):
        return len(self.of)
    def __iter__(self):
        return iter(self.of)
    def __getitem__(self, key):
        return self.of[key]
    def __repr__(self):
        return f'Proxy({self.of!r})'""",
    "Made": """
class Counting(type):
    def __call__(cls, *args, **kwargs):
        cls.count += 1
        return super().__call__(*args, **kwargs)
class Made(Box, metaclass=Counting):
    count = 0
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Made.registry.append(cls.__name__)""",
    "Posted": """
@dataclasses.dataclass
class Posted(Record):
    double: int = dataclasses.field(init=False, default=0)
    start: dataclasses.InitVar[int] = 3
    def __post_init__(self, start):
        self.double = self.n * 2 + start
        self.items.append(self.n)""",
    "Version": """
@functools.total_ordering
class Version:
    __slots__ = ('of',)
    def __init__(self, of):
        self.of = of
    def __eq__(self, other):
        return self.of == other.of
    def __lt__(self, other):
        return self.of < other.of
    def __hash__(self):
        return self.of""",
    "Flags": """
class Flags(enum.Flag):
    A = 1
    B = 2""",
    "Deferred": """
class Deferred:
    def __init__(self, n):
        self.n = n
    def __getattr__(self, name):
        if name.startswith('_'):
            raise AttributeError(name)
        found = self.__dict__[name] = self.n + len(name)
        return found""",
    "Rethrow": """
class Rethrow:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        print('in', self.name)
        return self
    def __exit__(self, kind, error, trace):
        if kind is not None:
            raise Oops(self.name) from error""",
    "Unenterable": """
class Unenterable:
    def __init__(self, n):
        self.n = n
    def __enter__(self):
        if self.n:
            raise RuntimeError('no', self.n)
    def __exit__(self, *args):
        print(args[0])""",
    "Recorder": """
class Recorder:
    log = []
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow
    def __enter__(self):
        self.log.append('enter ' + self.name)
        return self
    def __exit__(self, kind, error, trace):
        self.log.append(('exit', kind and kind.__name__))
        return self.swallow and isinstance(error, Exception)""",
    "managed": """
@contextlib.contextmanager
def managed(name):
    print('enter', name)
    try:
        yield name + '!'
    finally:
        print('leave', name)""",
    "restoring": """
@contextlib.contextmanager
def restoring(box, n):
    before, box.n = box.n, n
    try:
        yield box
    finally:
        box.n = before""",
    "collecting": """
@contextlib.contextmanager
def collecting():
    found = []
    try:
        yield found
    except ValueError as error:
        found.append(str(error))""",
    "helper": """
def helper(t, scale=2.0, *, shift=0):
    return t * scale + shift""",
    "vararg": """
def vararg(first, *rest, **named):
    for t in rest:
        first = first + t
    return first * len(named)""",
    "keywords": """
def keywords(**named):
    return named""",
    "method_user": """
def method_user(box, t):
    box.items.append(box.bump(1))
    return box(t)""",
    "recurse": """
def recurse(t, depth):
    return t if depth <= 0 else recurse(t + 1, depth - 1) * 2""",
    "logged": """
def logged(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        inner.calls += 1
        return fn(*args, **kwargs)
    inner.calls = 0
    return inner""",
    "doubled": """
@logged
def doubled(t):
    return t * 2""",
    "scaled": """
def scaled(by):
    def apply(t):
        return t * by
    return apply""",
    "adder": """
def adder(t):
    count = 0
    def add(other):
        nonlocal count
        count += 1
        return t + other * count
    return add""",
    "counter": """
def make_counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
counter = make_counter()""",
    "tally": """
def tally(n, seen=[], *, step=1):
    seen.append(n)
    return len(seen) * step""",
    "cached": """
@functools.lru_cache(maxsize=None)
def cached(n):
    return n * n""",
    "counted": """
def counted(n):
    for i in range(n):
        yield i
    return n""",
    "doubling": """
def doubling(items):
    for i in items:
        got = yield i * 2
    yield from counted(2)""",
    "numbers": """
def numbers(t):
    try:
        yield t + 1
        yield t + 2
    finally:
        t = None""",
    "pairs": """
def pairs(t):
    yield t
    yield t * 2""",
    "generate": """
def generate(t, n):
    print('begun')
    try:
        for i in range(n):
            got = yield t * i
            if got is not None:
                t = t + got
        return n
    except KeyError as error:
        print('handled', error)
        yield t
    finally:
        print('ended')""",
    "drive": """
def drive(coroutine):
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value
class Once:
    def __await__(self):
        yield
        return 1
async def later(t):
    n = await Once()
    return t + n
class Later:
    async def __aenter__(self):
        print('later')
        return await Once()
    async def __aexit__(self, *args):
        await Once()
        print('left')
async def steps(t, n):
    for i in range(n):
        await Once()
        yield t + i""",
    "first": """
def first(v, n):
    return v[:n]""",
    "positive": """
def positive(v):
    return v[v > 0]""",
    "with_side": """
def with_side(t, items):
    items.append(t.dim())
    t.mul_(2)""",
    "COUNTED": """
@logged
@functools.lru_cache
def size_of(t):
    return t.numel()
def COUNTED(t):
    return t + size_of(t)""",
    "NESTED": """
@smelt.compile(backend='eager')
def NESTED(t):
    return t * 2 + t.shape[-1]""",
    "astuple": """
def astuple(n):
    return n, n + 1""",
    "broken": """
def broken(t):
    y = t + 1
    smelt.graph_break()
    return y * 2""",
    "opaque": """
@smelt.disable
def opaque(t):
    return t * 3""",
    "MODULE": """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.inner = nn.ModuleList([nn.ReLU(), nn.Tanh()])
        self.register_buffer('state', torch.zeros(3))
        self.calls, self.history, self.last = 0, [], None
    def forward(self, t):
        self.calls += 1
        for layer in self.inner:
            t = layer(t * self.weight)
        if self.training:
            self.state.add_(1)
        return t + self.state
MODULE = Layer()""",
}

_ORDER = ("Oops", "Color", "Record", "Posted", "Point", "Box", "Child", "Slotted", "Field", "Tracked", "Made")


def needed(text: str) -> str:
    """The definitions that a program's text needs, and those that they need."""
    names: set[str] = set()
    missing = {text}
    while missing:
        words = set(re.findall(r"\w+", "\n".join(missing)))
        found = {name for name in DEFINITIONS if name in words} - names
        names |= found
        missing = {DEFINITIONS[name] for name in found}
    first = [name for name in _ORDER if name in names]
    functions = [n for n in DEFINITIONS if n in names and n not in _ORDER and "\n" in DEFINITIONS[n]]
    values = [n for n in DEFINITIONS if n in names and n not in _ORDER and "\n" not in DEFINITIONS[n]]
    return "\n".join(DEFINITIONS[n].strip("\n") for n in [*first, *values, *functions])
