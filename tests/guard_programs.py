# ruff: noqa: E501
"""Two values of every class, everywhere a value can stand: `python -m tests.guard_programs --programs 5000`.

A program reads a value that stands somewhere (an argument, an attribute, a global ...), before or behind the end of a
graph, and is called with two values in turn, or with one that is changed in between. Whatever a caller sees has to be
what eager gives.
"""

from __future__ import annotations

import random
import sys
import types
from typing import Any

import torch

from smelt.base.options import Options
from smelt.capture.compiled import compile_callable
from tests.capture.harness import eager_graph
from tests.sweep import sweep

DEFINITIONS = """
import abc, array, calendar, collections, contextlib, contextvars, copy, dataclasses, datetime, decimal, enum, fractions
import functools, inspect, io, itertools, math, operator, os, pathlib, random, re, string, sys, threading, types, typing
import uuid, warnings, weakref, zoneinfo
import numpy as np
import torch
from torch import nn

class Whole(int): pass
class Text(str): pass
class Real(float): pass
class Octets(bytes): pass
class Listed(list): pass
class Tupled(tuple): pass
class Mapped(dict): pass
class Setted(set): pass
class Color(enum.Enum):
    RED = 1; GREEN = 2
class Level(enum.IntEnum):
    LOW = 1; HIGH = 2
class Flags(enum.Flag):
    A = 1; B = 2
class Names(enum.StrEnum):
    A = "a"; B = "b"
@dataclasses.dataclass
class Data:
    a: object = 0
    b: object = 1
@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object = 0
@dataclasses.dataclass(slots=True)
class Slotted:
    a: object = 0
class Named(typing.NamedTuple):
    a: object
    b: object = 2
Pair = collections.namedtuple("Pair", "a b", defaults=(0,))
class Bag:
    kind = "bag"
class Slots:
    __slots__ = ("held",)
class Lengthy:
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
class Truthy:
    def __init__(self, n): self.n = n
    def __bool__(self): return bool(self.n)
class Indexed:
    def __init__(self, n): self.n = n
    def __index__(self): return self.n
    def __int__(self): return self.n
    def __float__(self): return float(self.n)
class Equal:
    def __init__(self, n): self.n = n
    def __eq__(self, other): return True
    def __hash__(self): return 1
class Calls:
    def __init__(self, n): self.n = n
    def __call__(self, x): return x + self.n
class Getattr:
    def __init__(self, n): self.n = n
    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        return self.n
class Described:
    @property
    def held(self): return self._n
    def __init__(self, n): self._n = n
class Contained:
    def __init__(self, n): self.n = n
    def __contains__(self, x): return x == self.n
    def __getitem__(self, i):
        if i > 2: raise IndexError(i)
        return self.n + i
class Iterated:
    def __init__(self, n): self.n = n
    def __iter__(self): return iter(range(self.n))
class Missing(dict):
    def __missing__(self, key): return self.n
class Failure(Exception):
    pass
class Hashed:
    def __init__(self, n): self.n = n
    def __hash__(self): return self.n
class Compared:
    def __init__(self, n): self.n = n
    def __lt__(self, other): return self.n < (other.n if isinstance(other, Compared) else other)
    def __add__(self, other): return self.n + other
    __radd__ = __add__
    def __enter__(self): return self.n
    def __exit__(self, *args): return False

def attributed(value, **held):
    for name, item in held.items(): setattr(value, name, item)
    return value
def defaulted(n):
    def inner(x, k=n): return x + k
    return inner
def named(n):
    def inner(x, *, k=n): return x + k
    return inner
def closed(n):
    def inner(x): return x + n
    return inner
def noted(n):
    def inner(x: n): return x
    inner.__doc__ = str(n)
    inner.note = n
    return inner
def generated(n):
    yield n
    yield n + 1
def missing(n):
    out = Missing(); out.n = n
    return out
def method(n):
    return Calls(n).__call__
def bound(n):
    return types.MethodType(lambda self, x: x + self.n, Calls(n))
def classed(n):
    return type("Made", (), {"n": n, "get": lambda self: n, "__len__": lambda self: n})
def based(n):
    return type("Sub", (classed(n),), {})
def linear(n):
    out = nn.Linear(1, 1); out.weight.data.fill_(n); out.bias.data.fill_(0); out.n = n
    return out
def dropped(training):
    return nn.Dropout(1.0).train(training)
def varied(n):
    out = contextvars.ContextVar("var"); out.set(n)
    return out
def spaced(**held):
    out = types.ModuleType("made"); vars(out).update(held)
    return out
"""

# (name, first value, second value, expressions that read `v`); what `GENERIC` holds is asked of each as well
PAIRS: list[tuple[str, str, str, list[str]]] = [
    ("int", "3", "4", ["x * v", "v.bit_length()", "v % 3", "-v", "f'{v:03d}'", "v.__add__(1)", "v.real", "x.expand(v, 1).shape", "pow(v, 2, 5)", "divmod(v, 3)", "int.__mul__(v, 2)", "v.to_bytes(2, 'big')"]),
    ("int0", "0", "1", ["x * v", "x[v:]", "v or 7", "not v", "[1, 2][v]", "x.sum(v) if v == 0 else x"]),
    ("large", "2**70", "2**70 + 1", ["v % 10", "v > 2**70", "float(v)", "x * v"]),
    ("negative", "-1", "-2", ["v // 2", "v ** 2", "abs(v)", "x.unsqueeze(v).shape", "~v", "v >> 1"]),
    ("intbool", "1", "True", ["x * v", "v is True", "v + v", "f'{v}'", "str(v)", "type(v).__name__", "[v]", "{v: v}", "isinstance(v, bool)", "json_(v)"]),
    ("intfloat", "1", "1.0", ["x.long() * v", "v / 2", "v // 2", "str(v)", "torch.tensor(v).dtype", "{v: 'k'}", "(v,)", "torch.full((2,), v).dtype"]),
    ("bool", "True", "False", ["x * v", "x if v else -x", "v & True", "v ^ True", "x + v", "int(v)", "not v", "v == 1"]),
    ("float", "1.5", "2.5", ["x * v", "v.is_integer()", "round(v)", "v.hex()", "v.as_integer_ratio()", "math.floor(v)", "v % 1", "f'{v:.1f}'", "int(v)", "divmod(v, 1)"]),
    ("zero", "0.0", "-0.0", ["math.copysign(1, v)", "x * v", "torch.atan2(x * v, -x)", "str(v)", "f'{v}'", "1 / torch.tensor(v)", "[v]", "{'k': v}", "v == 0", "(v,)", "max(v, 0.0)", "torch.tensor(v).signbit()"]),
    ("nan", "float('nan')", "1.0", ["v != v", "x * v", "math.isnan(v)", "max(v, 2.0)", "v in (1.0,)", "sorted([3.0, v, 2.0])", "v > 0", "x.clamp(max=v)", "v is v"]),
    ("inf", "float('inf')", "-float('inf')", ["x * v", "math.isinf(v)", "v > 0", "x.masked_fill(x > 0, v)", "str(v)", "max(v, 0)"]),
    ("infnan", "float('inf')", "float('nan')", ["x * v", "v > 0", "v == v"]),
    ("complex", "1j", "2j", ["x * v", "v.imag", "v.conjugate()", "abs(v)", "v ** 2"]),
    ("complexzero", "complex(0.0, 1.0)", "complex(-0.0, 1.0)", ["math.copysign(1, v.real)", "v.real", "str(v)"]),
    ("str", "'a'", "'b'", ["v.upper()", "v + 'c'", "v in 'abc'", "len(v)", "ord(v)", "f'{v:>3}'", "v < 'b'", "'%s' % v", "v * 2", "{'a': 1}.get(v)", "v.encode()", "v.join('xy')", "getattr(Bag, v, 5)", "v.format(1)", "re.match(v, 'abc') is None", "sys.intern(v)", "v[0]", "v == 'a'", "v is not None", "torch.einsum('i,i->i' if v == 'a' else 'i,j->ij', x, x)"]),
    ("strnumber", "'1'", "'1.5'", ["float(v)", "v.isdigit()", "len(v)"]),
    ("strempty", "''", "' '", ["bool(v)", "v.strip()", "v or 'none'", "len(v)", "v.isspace()"]),
    ("unicode", "'\\u00e9'", "'e\\u0301'", ["len(v)", "v.upper()", "v.encode()"]),
    ("bytes", "b'a'", "b'b'", ["v[0]", "v + b'c'", "v.decode()", "len(v)", "v.hex()", "torch.tensor(list(v))", "v == b'a'", "int.from_bytes(v, 'big')"]),
    ("bytearray", "bytearray(b'a')", "bytearray(b'b')", ["v[0]", "bytes(v)", "len(v)"]),
    ("memoryview", "memoryview(b'ab')", "memoryview(b'ac')", ["v[1]", "bytes(v)", "v.tolist()"]),
    ("array", "array.array('i', [1, 2])", "array.array('i', [1, 3])", ["v[1]", "sum(v)", "v.tolist()", "torch.tensor(v)", "len(v)"]),
    ("slice", "slice(0, 2)", "slice(1, 2)", ["x.repeat(3)[v]", "[1, 2, 3][v]", "v.start", "v.stop", "v.step", "v.indices(3)", "v == slice(0, 2)", "'abc'[v]", "(1, 2, 3)[v]", "x.repeat(3)[(v,)]"]),
    ("range", "range(3)", "range(4)", ["len(v)", "sum(v)", "list(v)", "v[-1]", "v.stop", "3 in v", "x.repeat(5)[list(v)]", "list(reversed(v))", "[i for i in v]", "v == range(3)"]),
    ("decimal", "decimal.Decimal('1.0')", "decimal.Decimal('1.00')", ["str(v)", "float(v)", "v + 1", "v.as_tuple()", "v.quantize(decimal.Decimal('0.1'))", "f'{v}'"]),
    ("decimal2", "decimal.Decimal(1)", "decimal.Decimal(2)", ["x * float(v)", "v > 1", "int(v)", "v * 2", "-v", "v.sqrt()", "hash(v)"]),
    ("fraction", "fractions.Fraction(1, 2)", "fractions.Fraction(3, 2)", ["x * float(v)", "v + 1", "v.numerator", "v > 1", "math.floor(v)", "v.limit_denominator(1)", "round(v)"]),
    ("npfloat", "np.float32(1)", "np.float32(2)", ["x * float(v)", "v + 1", "v.item()", "v.dtype", "x * v", "v > 1", "np.sqrt(v)", "torch.tensor(v)"]),
    ("npint", "np.int64(1)", "np.int64(2)", ["x * int(v)", "v + 1", "x.repeat(3)[v]", "range(v)", "x.repeat(int(v))", "v == 1", "[5, 6, 7][v]", "x.unsqueeze(0).repeat(v, 1)"]),
    ("npdtype", "np.float32(1)", "np.float64(1)", ["v.dtype", "(v + np.float32(1)).dtype", "torch.tensor(v).dtype", "type(v).__name__", "v.nbytes"]),
    ("npbool", "np.bool_(True)", "np.bool_(False)", ["bool(v)", "x if v else -x", "not v", "~v"]),
    ("nparray", "np.array([1., 2.])", "np.array([1., 3.])", ["v.sum()", "torch.from_numpy(v).sum()", "v[1]", "float(v[1])", "v.tolist()", "x * v[1]", "(v > 2).any()", "np.max(v)", "len(v)", "torch.as_tensor(v) + x.double()"]),
    ("npshape", "np.zeros(2)", "np.zeros((2, 1))", ["v.shape", "v.ndim", "torch.from_numpy(v).shape", "len(v)", "v.size"]),
    ("npkind", "np.zeros(2, 'f4')", "np.zeros(2, 'f8')", ["v.dtype", "torch.from_numpy(v).dtype", "v.itemsize"]),
    ("npobject", "np.array(['a', 'b'])", "np.array(['a', 'c'])", ["v[1]", "list(v)", "v.tolist()"]),
    ("npwriteable", "np.zeros(2)", "np.broadcast_to(np.zeros(1), (2,))", ["v.flags.writeable", "v.strides"]),
    ("nptime", "np.datetime64('2020-01-01')", "np.datetime64('2020-01-02')", ["str(v)", "v.astype(int)", "v + np.timedelta64(1, 'D')"]),
    ("date", "datetime.date(2020, 1, 1)", "datetime.date(2020, 1, 2)", ["v.day", "v.isoformat()", "v > datetime.date(2020, 1, 1)", "(v - datetime.date(2019, 1, 1)).days", "v.weekday()", "f'{v:%d}'"]),
    ("datetime", "datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)", ["v.isoformat()", "v.tzinfo", "v.hour"]),
    ("time", "datetime.time(1)", "datetime.time(2)", ["v.hour", "str(v)"]),
    ("delta", "datetime.timedelta(1)", "datetime.timedelta(2)", ["v.days", "v.total_seconds()", "v * 2", "x * v.days"]),
    ("zone", "zoneinfo.ZoneInfo('UTC')", "datetime.timezone(datetime.timedelta(hours=1))", ["str(v)", "datetime.datetime(2020, 1, 1, tzinfo=v).isoformat()"]),
    ("uuid", "uuid.UUID(int=1)", "uuid.UUID(int=2)", ["str(v)", "v.int", "v.hex"]),
    ("path", "pathlib.PurePosixPath('a/b')", "pathlib.PurePosixPath('a/c')", ["v.name", "str(v)", "v / 'd'", "v.parent", "v.suffix", "os.fspath(v)"]),
    ("regex", "re.compile('a')", "re.compile('b')", ["v.pattern", "v.match('abc') is None", "v.sub('z', 'abc')", "bool(v.search('b'))"]),
    ("regexflags", "re.compile('a')", "re.compile('a', re.I)", ["v.flags", "bool(v.match('A'))"]),
    ("match", "re.match('(.)', 'ab')", "re.match('(.)', 'ba')", ["v.group(1)", "v[0]", "v.groups()", "v.string", "v.span()"]),
    ("enum", "Color.RED", "Color.GREEN", ["v.name", "v.value", "v is Color.RED", "x * v.value", "v == Color.RED", "{Color.RED: 1}.get(v)", "str(v)", "v in (Color.RED,)"]),
    ("intenum", "Level.LOW", "Level.HIGH", ["v + 1", "x * v", "v.name", "v > 1", "v == 1", "x.repeat(3)[v]", "str(v)", "f'{v}'"]),
    ("enumint", "Level.LOW", "1", ["type(v).__name__", "str(v)", "v + 1", "repr(v)", "getattr(v, 'name', None)"]),
    ("flag", "Flags.A", "Flags.A | Flags.B", ["Flags.B in v", "v.value", "bool(v & Flags.B)", "list(v)", "v.name", "~v"]),
    ("strenum", "Names.A", "Names.B", ["v == 'a'", "v.upper()", "f'{v}'", "v.value", "{'a': 1}.get(v)"]),
    ("whole", "Whole(3)", "Whole(4)", ["x * v", "v + 1", "type(v + 1).__name__", "range(v)", "x.repeat(v)"]),
    ("wholeint", "Whole(3)", "3", ["type(v).__name__", "isinstance(v, Whole)", "v + 1", "type(v) is int"]),
    ("wholeattr", "attributed(Whole(3), k=1)", "attributed(Whole(3), k=2)", ["v.k", "x * v.k", "vars(v)"]),
    ("wholenoattr", "Whole(3)", "attributed(Whole(3), k=2)", ["hasattr(v, 'k')", "getattr(v, 'k', 0)"]),
    ("real", "Real(1.5)", "Real(2.5)", ["x * v", "v + 1", "type(v).__name__"]),
    ("realzero", "Real(0.0)", "Real(-0.0)", ["math.copysign(1, v)", "str(float(v))"]),
    ("text", "Text('a')", "Text('b')", ["v + 'c'", "v.upper()", "v == 'a'", "{'a': 1}.get(v)"]),
    ("textattr", "attributed(Text('a'), k=1)", "attributed(Text('a'), k=2)", ["v.k"]),
    ("octets", "Octets(b'a')", "Octets(b'b')", ["v[0]", "v.decode()"]),
    ("list", "[1, 2]", "[1, 3]", ["v[1]", "sum(v)", "v + [4]", "x * v[1]", "[i * 2 for i in v]", "max(v)", "v == [1, 2]", "2 in v", "v.index(v[1])", "v.copy()", "x.repeat(4)[v]", "torch.tensor(v)", "v[::-1]", "sorted(v, reverse=True)", "tuple(v)", "list(map(str, v))", "list(zip(v, v))", "list(enumerate(v))", "v.count(2)"]),
    ("listlen", "[1, 2]", "[1, 2, 3]", ["len(v)", "v[-1]", "sum(v)", "[*v]", "x.repeat(5)[v]", "len(v) > 2", "v[2:]"]),
    ("listtype", "[1]", "[True]", ["v[0] is True", "str(v)", "x * v[0]", "type(v[0]).__name__"]),
    ("listempty", "[]", "[0]", ["bool(v)", "v or 7", "not v", "any(v)", "len(v)", "all(v)"]),
    ("listnest", "[[1, [2]]]", "[[1, [3]]]", ["v[0][1][0]", "copy.deepcopy(v)", "str(v)"]),
    ("listed", "Listed([1, 2])", "Listed([1, 3])", ["v[1]", "sum(v)", "type(v).__name__", "list(v)"]),
    ("listlisted", "[1, 2]", "Listed([1, 2])", ["type(v).__name__", "isinstance(v, Listed)"]),
    ("listedattr", "attributed(Listed([1]), k=1)", "attributed(Listed([1]), k=2)", ["v.k"]),
    ("tuple", "(1, 2)", "(1, 3)", ["v[1]", "sum(v)", "v + (4,)", "x * v[1]", "hash(v) == hash((1, 2))", "v == (1, 2)", "x.expand(v).shape if False else v", "{(1, 2): 5}.get(v)", "torch.zeros(v).shape"]),
    ("tuplelist", "(1, 2)", "[1, 2]", ["type(v).__name__", "isinstance(v, tuple)", "torch.zeros(2, 3)[v].shape if False else str(v)", "torch.arange(12).view(3, 4)[v]"]),
    ("tupled", "Tupled((1, 2))", "Tupled((1, 3))", ["v[1]", "type(v).__name__", "sum(v)"]),
    ("tupledattr", "attributed(Tupled((1,)), k=1)", "attributed(Tupled((1,)), k=2)", ["v.k"]),
    ("tuplezero", "(0.0,)", "(-0.0,)", ["math.copysign(1, v[0])", "str(v)", "math.copysign(1, sum(v, -0.0))"]),
    ("tuplenan", "(float('nan'),)", "(1.0,)", ["v[0] != v[0]", "str(v)"]),
    ("named", "Named(1)", "Named(3)", ["v.a", "v[0]", "v._replace(b=4)", "v._asdict()", "x * v.a"]),
    ("pair", "Pair(1, 2)", "Pair(1, 3)", ["v.b", "v[1]", "v == (1, 2)", "v._fields"]),
    ("namedpair", "Pair(1, 2)", "Named(1, 2)", ["type(v).__name__", "v.b"]),
    ("dict", "{'a': 1}", "{'a': 2}", ["v['a']", "x * v['a']", "v.get('a')", "list(v.items())", "sum(v.values())", "{**v}", "v | {'b': 1}", "dict(v)", "v == {'a': 1}", "max(v.items())", "v.copy()", "[k for k in v]", "kw(**v)"]),
    ("dictkeys", "{'a': 1}", "{'b': 1}", ["list(v)", "'a' in v", "v.get('a', 0)", "kw(**v)", "next(iter(v))", "list(v.keys())", "v.keys() & {'a'}", "v.keys() == {'a'}"]),
    ("dictorder", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", ["list(v)", "list(v.values())", "str(v)", "next(iter(v))", "kw(**v)", "list(reversed(v))", "[*v]", "tuple(v.items())", "json_(v)", "torch.stack([x * i for i in v.values()])"]),
    ("dictint", "{1: 'a'}", "{True: 'a'}", ["list(v)[0] is True", "str(v)", "v[1]"]),
    ("dictintfloat", "{1: 'a'}", "{1.0: 'a'}", ["str(v)", "type(next(iter(v))).__name__"]),
    ("dictlen", "{'a': 1}", "{'a': 1, 'b': 2}", ["len(v)", "sum(v.values())", "list(v)", "'b' in v", "v.get('b')", "v.get('b', 5)", "v.keys() - {'a'}"]),
    ("dictempty", "{}", "{'a': 1}", ["bool(v)", "v or 7", "not v", "len(v)", "kw(**v)"]),
    ("dictvalue", "{'a': 0.0}", "{'a': -0.0}", ["math.copysign(1, v['a'])", "str(v)"]),
    ("mapped", "Mapped(a=1)", "Mapped(a=2)", ["v['a']", "type(v).__name__", "dict(v)", "{**v}", "list(v.items())"]),
    ("mappedattr", "attributed(Mapped(a=1), k=1)", "attributed(Mapped(a=1), k=2)", ["v.k"]),
    ("ordered", "collections.OrderedDict(a=1, b=2)", "collections.OrderedDict(b=2, a=1)", ["list(v)", "v == collections.OrderedDict(a=1, b=2)", "next(iter(v))", "list(v.values())", "list(reversed(v))"]),
    ("default", "collections.defaultdict(int, a=1)", "collections.defaultdict(list, a=1)", ["v['b']", "v.default_factory", "v.get('b')", "v['a']"]),
    ("defaultvalue", "collections.defaultdict(int, a=1)", "collections.defaultdict(int, a=2)", ["v['a']", "sum(v.values())", "v['q']"]),
    ("counter", "collections.Counter('ab')", "collections.Counter('aab')", ["v['a']", "v.most_common(1)", "v.total()", "v['z']", "sorted(v.elements())", "v + v", "v - collections.Counter('a')"]),
    ("chain", "collections.ChainMap({'a': 1}, {'b': 2})", "collections.ChainMap({'a': 1}, {'b': 3})", ["v['b']", "dict(v)", "'b' in v", "sorted(v)", "v.parents['b']", "v.new_child()['b']"]),
    ("user", "collections.UserDict(a=1)", "collections.UserDict(a=2)", ["v['a']", "dict(v)", "v.data"]),
    ("userlist", "collections.UserList([1, 2])", "collections.UserList([1, 3])", ["v[1]", "sum(v)", "len(v)"]),
    ("proxy", "types.MappingProxyType({'a': 1})", "types.MappingProxyType({'a': 2})", ["v['a']", "dict(v)", "list(v.values())", "'a' in v", "v.get('a')", "{**v}", "v | {}"]),
    ("views", "{'a': 1}.keys()", "{'b': 1}.keys()", ["'a' in v", "list(v)", "len(v)", "v | {'c'}"]),
    ("values", "{'a': 1}.values()", "{'a': 2}.values()", ["sum(v)", "list(v)", "max(v)"]),
    ("items", "{'a': 1}.items()", "{'a': 2}.items()", ["list(v)", "('a', 1) in v", "dict(v)"]),
    ("set", "{1, 2}", "{1, 3}", ["2 in v", "sum(v)", "sorted(v)", "v & {2}", "v | {5}", "len(v)", "v == {1, 2}", "v <= {1, 2}", "max(v)", "v - {1}", "v.isdisjoint({2})"]),
    ("setlen", "{1}", "{1, 2}", ["len(v)", "sum(v)", "2 in v"]),
    ("settype", "{1}", "{True}", ["next(iter(v)) is True", "str(v)"]),
    ("setted", "Setted([1])", "Setted([2])", ["sum(v)", "1 in v", "type(v).__name__"]),
    ("frozenset", "frozenset([1, 2])", "frozenset([1, 3])", ["2 in v", "sum(v)", "sorted(v)", "v & {2}", "v == {1, 2}", "{frozenset([1, 2]): 7}.get(v)"]),
    ("frozensettype", "frozenset([1])", "frozenset([1.0])", ["str(v)", "type(next(iter(v))).__name__"]),
    ("deque", "collections.deque([1, 2])", "collections.deque([1, 3])", ["v[1]", "sum(v)", "list(v)", "v[-1]", "x * v[1]", "max(v)", "list(reversed(v))", "v.count(2)", "2 in v"]),
    ("dequemax", "collections.deque([1], 1)", "collections.deque([1], 2)", ["v.maxlen", "str(v)", "[v.append(5), list(v)][1]"]),
    ("data", "Data(1)", "Data(2)", ["v.a", "x * v.a", "dataclasses.asdict(v)", "dataclasses.replace(v, b=3)", "v == Data(1)", "dataclasses.astuple(v)", "vars(v)", "getattr(v, 'a')"]),
    ("frozen", "Frozen(1)", "Frozen(2)", ["v.a", "hash(v) == hash(Frozen(1))", "dataclasses.asdict(v)", "v == Frozen(1)"]),
    ("frozentensor", "Frozen((1, 0.0))", "Frozen((1, -0.0))", ["str(v.a)", "v.a"]),
    ("slotted", "Slotted(1)", "Slotted(2)", ["v.a", "x * v.a", "v"]),
    ("bag", "attributed(Bag(), k=1)", "attributed(Bag(), k=2)", ["v.k", "x * v.k", "vars(v)", "getattr(v, 'k')", "v.__dict__['k']", "hasattr(v, 'k')", "dict(vars(v))", "copy.copy(v).k"]),
    ("bagmissing", "Bag()", "attributed(Bag(), k=2)", ["hasattr(v, 'k')", "getattr(v, 'k', 0)", "'k' in vars(v)", "len(vars(v))", "v.__dict__.get('k')"]),
    ("bagclass", "Bag()", "attributed(Bag(), kind='own')", ["v.kind", "Bag.kind", "type(v).kind", "getattr(v, 'kind')", "v.kind == 'bag'"]),
    ("slots", "attributed(Slots(), held=1)", "attributed(Slots(), held=2)", ["v.held", "x * v.held", "hasattr(v, 'held')"]),
    ("slotsmissing", "Slots()", "attributed(Slots(), held=2)", ["hasattr(v, 'held')", "getattr(v, 'held', 0)"]),
    ("lengthy", "Lengthy(0)", "Lengthy(2)", ["bool(v)", "len(v)", "not v", "x if v else -x", "v and 1"]),
    ("truthy", "Truthy(0)", "Truthy(1)", ["bool(v)", "not v", "x if v else -x", "v and 1", "any([v])"]),
    ("indexed", "Indexed(0)", "Indexed(1)", ["[5, 6][v]", "int(v)", "operator.index(v)", "range(v)", "float(v)", "x.repeat(2)[v]", "bin(v)"]),
    ("equal", "Equal(1)", "Equal(2)", ["v.n", "v == 5", "{v: 1}[Equal(3)]", "[Equal(3)].index(v)"]),
    ("calls", "Calls(1)", "Calls(2)", ["v(x)", "v(1)", "callable(v)", "list(map(v, [1]))", "v.__call__(1)"]),
    ("getattr", "Getattr(1)", "Getattr(2)", ["v.whatever", "getattr(v, 'q', 0)", "hasattr(v, 'q')", "x * v.z"]),
    ("described", "Described(1)", "Described(2)", ["v.held", "x * v.held", "type(v).held.fget(v)"]),
    ("contained", "Contained(1)", "Contained(2)", ["1 in v", "v[1]", "list(v)", "x * v[0]"]),
    ("iterated", "Iterated(1)", "Iterated(2)", ["list(v)", "sum(v)", "[i for i in v]", "max(v)", "tuple(v)", "1 in v", "[*v]", "dict.fromkeys(v)"]),
    ("missing", "missing(1)", "missing(2)", ["v['q']", "v.get('q')", "'q' in v"]),
    ("compared", "Compared(1)", "Compared(3)", ["v < 2", "v + 1", "sorted([v, Compared(2)])[0].n", "1 + v", "max(v, Compared(2)).n", "sum([v, 1], 0)", "within(v)"]),
    ("hashed", "Hashed(1)", "Hashed(2)", ["hash(v)", "v in {v}"]),
    ("default argument", "defaulted(1)", "defaulted(2)", ["v(x)", "v(1)", "v.__defaults__", "inspect.signature(v).parameters['k'].default"]),
    ("named argument", "named(1)", "named(2)", ["v(x)", "v(1)", "v.__kwdefaults__"]),
    ("closure", "closed(1)", "closed(2)", ["v(x)", "v(1)", "v.__closure__[0].cell_contents", "list(map(v, [1]))", "functools.reduce(lambda a, b: v(b), [1, 2])"]),
    ("function", "(lambda x: x + 1)", "(lambda x: x + 2)", ["v(x)", "v(1)", "list(map(v, [1, 2]))", "sorted([1, -2], key=v)", "v.__code__.co_consts", "torch.func.vmap(v)(x)"]),
    ("notes", "noted(1)", "noted(2)", ["v.note", "v.__doc__", "v.__annotations__", "vars(v)", "v.__name__"]),
    ("partial", "functools.partial(max, 1)", "functools.partial(max, 2)", ["v(0)", "v.args", "v.func"]),
    ("partialkw", "functools.partial(torch.add, alpha=1)", "functools.partial(torch.add, alpha=2)", ["v(x, x)", "v.keywords"]),
    ("partialfn", "functools.partial(torch.sin)", "functools.partial(torch.cos)", ["v(x)", "v.func is torch.sin"]),
    ("method", "method(1)", "method(2)", ["v(x)", "v(1)", "v.__self__.n", "v.__func__ is Calls.__call__"]),
    ("bound", "bound(1)", "bound(2)", ["v(x)", "v(1)", "v.__self__.n"]),
    ("builtin method", "[1, 2].index", "[2, 1].index", ["v(1)", "v.__self__"]),
    ("dict method", "{'a': 1}.get", "{'a': 2}.get", ["v('a')", "v('b', 3)"]),
    ("str method", "'a'.join", "'b'.join", ["v(['x', 'y'])"]),
    ("builtin", "max", "min", ["v(1, 2)", "v is max", "v.__name__", "v([1, 2])"]),
    ("torch fn", "torch.sin", "torch.cos", ["v(x)", "v is torch.sin", "v.__name__"]),
    ("module fn", "nn.functional.relu", "nn.functional.silu", ["v(x)", "v(-x)"]),
    ("getter", "operator.itemgetter(0)", "operator.itemgetter(1)", ["v([1, 2])", "v(x.repeat(2))"]),
    ("attrgetter", "operator.attrgetter('a')", "operator.attrgetter('b')", ["v(Data(1, 2))"]),
    ("class", "classed(1)", "classed(2)", ["v.n", "v().get()", "v().n", "len(v())", "x * v.n", "vars(v)['n']"]),
    ("base", "based(1)", "based(2)", ["v.n", "v().get()", "v().n", "v.__mro__[1].n", "len(v())"]),
    ("type", "int", "float", ["v('1')", "v(2)", "v is int", "isinstance(1, v)", "issubclass(bool, v)", "v.__name__", "torch.tensor([v(1)]).dtype", "torch.zeros(2, dtype=v).dtype"]),
    ("exception", "ValueError(1)", "ValueError(2)", ["v.args", "str(v)", "raised(v)", "v.args[0]"]),
    ("exception kind", "ValueError(1)", "KeyError(1)", ["type(v).__name__", "raised(v)", "isinstance(v, ValueError)"]),
    ("exception note", "attributed(ValueError(1), k=1)", "attributed(ValueError(1), k=2)", ["v.k"]),
    ("iterator", "iter([1, 2])", "iter([3, 4])", ["next(v)", "list(v)", "sum(v)", "next(v, 5)"]),
    ("generator", "generated(1)", "generated(2)", ["next(v)", "list(v)", "sum(v)"]),
    ("map", "map(str, [1])", "map(str, [2])", ["list(v)", "next(v)"]),
    ("count", "itertools.count(1)", "itertools.count(2)", ["next(v)", "x * next(v)", "list(itertools.islice(v, 2))"]),
    ("cycle", "itertools.cycle([1, 2])", "itertools.cycle([2, 1])", ["next(v)"]),
    ("zip", "zip([1], [2])", "zip([1], [3])", ["list(v)", "next(v)", "dict(v)"]),
    ("enumerate", "enumerate(['a'])", "enumerate(['a'], 1)", ["list(v)", "next(v)"]),
    ("reversed", "reversed([1, 2])", "reversed([1, 3])", ["list(v)", "next(v)"]),
    ("space", "types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)", ["v.a", "x * v.a", "vars(v)", "v == types.SimpleNamespace(a=1)"]),
    ("moduletype", "spaced(a=1)", "spaced(a=2)", ["v.a", "x * v.a", "vars(v)['a']", "getattr(v, 'a')"]),
    ("variable", "varied(1)", "varied(2)", ["v.get()", "x * v.get()"]),
    ("weakref", "weakref.ref(ALIVE[0])", "weakref.ref(ALIVE[1])", ["v().k", "x * v().k", "v() is ALIVE[0]"]),
    ("proxyref", "weakref.proxy(ALIVE[0])", "weakref.proxy(ALIVE[1])", ["v.k", "x * v.k"]),
    ("dead", "weakref.ref(ALIVE[0])", "weakref.ref(Bag())", ["v() is None"]),
    ("cell", "types.CellType(1)", "types.CellType(2)", ["v.cell_contents", "x * v.cell_contents"]),
    ("code", "(lambda: 1).__code__", "(lambda: 2).__code__", ["v.co_consts", "types.FunctionType(v, {})()", "v.co_name"]),
    ("io", "io.StringIO('ab')", "io.StringIO('cd')", ["v.read()", "v.getvalue()", "v.read(1)"]),
    ("struct", "struct_('<i')", "struct_('>i')", ["v.pack(1)", "v.format", "v.size"]),
    ("random", "random.Random(1)", "random.Random(2)", ["v.random()", "v.randint(0, 99)", "v.choice([1, 2, 3, 4, 5])"]),
    ("generator np", "np.random.default_rng(1)", "np.random.default_rng(2)", ["v.random()", "v.integers(0, 99)"]),
    ("generator torch", "torch.Generator().manual_seed(1)", "torch.Generator().manual_seed(2)", ["torch.rand(2, generator=v)", "v.initial_seed()"]),
    ("ellipsis", "...", "None", ["x[v].shape", "v is None", "str(v)"]),
    ("none", "None", "0", ["v is None", "v or 5", "str(v)", "x if v is None else -x", "v == 0"]),
    ("notimplemented", "NotImplemented", "None", ["v is None", "str(v)"]),
    ("dtype", "torch.float32", "torch.float64", ["x.to(v).dtype", "torch.zeros(1, dtype=v).dtype", "v.itemsize", "str(v)", "v == torch.float32", "torch.finfo(v).eps", "v.is_floating_point"]),
    ("device", "torch.device('cpu')", "torch.device('meta')", ["v.type", "str(v)", "torch.zeros(1, device=v).device.type", "x.to(v).device.type", "v == torch.device('cpu')"]),
    ("deviceindex", "torch.device('cpu')", "torch.device('cpu', 0)", ["v.index", "str(v)", "v == torch.device('cpu')"]),
    ("layout", "torch.strided", "torch.sparse_coo", ["str(v)", "v is torch.strided"]),
    ("format", "torch.contiguous_format", "torch.channels_last", ["torch.zeros(2, 3, 4, 5).contiguous(memory_format=v).stride()", "str(v)"]),
    ("size", "torch.Size([1, 2])", "torch.Size([1, 3])", ["v.numel()", "torch.zeros(v).shape", "v[1]", "tuple(v)"]),
    ("finfo", "torch.finfo(torch.float32)", "torch.finfo(torch.float64)", ["v.eps", "v.max", "x * v.bits"]),
    ("tensor", "torch.ones(1)", "torch.full((1,), 2.)", ["v.item()", "v + x", "v.tolist()", "float(v)", "bool(v > 1)", "x if v > 1 else -x", "int(v)", "f'{v.item()}'"]),
    ("tensordtype", "torch.ones(1)", "torch.ones(1).double()", ["v.dtype", "(v + x).dtype", "v.element_size()"]),
    ("tensorshape", "torch.ones(1)", "torch.ones(1, 1)", ["v.shape", "v.dim()", "len(v.shape)", "v.numel()"]),
    ("tensorgrad", "torch.ones(1)", "torch.ones(1, requires_grad=True)", ["v.requires_grad", "(v * 2).requires_grad", "v.is_leaf", "(v * 2).grad_fn is None", "v.detach().requires_grad"]),
    ("tensorleaf", "torch.ones(1, requires_grad=True)", "torch.ones(1, requires_grad=True) * 1", ["v.is_leaf", "v.grad_fn is None", "type(v.grad_fn).__name__"]),
    ("tensorgradvalue", "torch.ones(1, requires_grad=True)", "attributed(torch.ones(1, requires_grad=True), grad=torch.ones(1))", ["v.grad is None", "v.grad", "x + (0 if v.grad is None else v.grad)"]),
    ("tensorgradof", "attributed(torch.ones(1, requires_grad=True), grad=torch.ones(1))", "attributed(torch.ones(1, requires_grad=True), grad=torch.zeros(1))", ["v.grad + x", "v.grad.sum().item()"]),
    ("tensorattr", "attributed(torch.ones(1), k=1)", "attributed(torch.ones(1), k=2)", ["v.k", "x * v.k", "hasattr(v, 'k')", "vars(v)"]),
    ("tensornoattr", "torch.ones(1)", "attributed(torch.ones(1), k=2)", ["hasattr(v, 'k')", "getattr(v, 'k', 0)"]),
    ("tensorparam", "torch.ones(1)", "nn.Parameter(torch.ones(1), False)", ["type(v).__name__", "isinstance(v, nn.Parameter)"]),
    ("tensorbuffer", "torch.ones(1)", "nn.Buffer(torch.ones(1))", ["isinstance(v, nn.Buffer)", "type(v).__name__"]),
    ("tensorstride", "torch.ones(2, 3)", "torch.ones(3, 2).t()", ["v.stride()", "v.is_contiguous()", "v.contiguous() is v", "(v * 2).stride()"]),
    ("tensoroffset", "torch.ones(2)[:1]", "torch.ones(2)[1:]", ["v.storage_offset()", "(v * 2).storage_offset()"]),
    ("tensorview", "torch.ones(1)", "torch.ones(2)[:1]", ["v._is_view()", "v._base is None", "v.untyped_storage().nbytes()"]),
    ("tensorversion", "torch.ones(1)", "torch.zeros(1).add_(1)", ["v._version"]),
    ("tensorretain", "torch.ones(1, requires_grad=True) * 1", "retained(torch.ones(1, requires_grad=True) * 1)", ["v.retains_grad"]),
    ("tensoroutput", "torch.ones(2, requires_grad=True).unbind()[0]", "torch.ones(2, requires_grad=True).unbind()[1]", ["v.output_nr"]),
    ("tensorconj", "torch.ones(1).to(torch.complex64)", "torch.ones(1).to(torch.complex64).conj()", ["v.is_conj()", "v.resolve_conj() is v"]),
    ("tensorneg", "torch.ones(1)", "torch._neg_view(-torch.ones(1))", ["v.is_neg()"]),
    ("tensorinference", "torch.ones(1)", "inference()", ["v.is_inference()"]),
    ("tensorlayout", "torch.ones(1)", "torch.ones(1).to_sparse()", ["v.layout", "v.is_sparse"]),
    ("tensordevice", "torch.ones(1)", "torch.ones(1, device='meta')", ["v.device.type", "v.is_meta", "v.is_cpu"]),
    ("tensorshared", "torch.ones(1)", "torch.ones(1).share_memory_()", ["v.is_shared()"]),
    ("tensorhooks", "torch.ones(1, requires_grad=True) * 1", "hooked(torch.ones(1, requires_grad=True) * 1)", ["bool(v._backward_hooks)", "grads(v)"]),
    ("module", "linear(1)", "linear(2)", ["v(x)", "v.n", "v.weight.item()", "list(v.state_dict())", "v.weight * x"]),
    ("training", "dropped(True)", "dropped(False)", ["v(x)", "v.training", "x if v.training else -x"]),
    ("modulekind", "nn.ReLU()", "nn.Sigmoid()", ["v(-x)", "type(v).__name__", "isinstance(v, nn.ReLU)"]),
    ("modulehook", "nn.ReLU()", "forward_hook(nn.ReLU())", ["v(x)", "len(v._forward_hooks)"]),
    ("moduleprehook", "nn.ReLU()", "pre_hook(nn.ReLU())", ["v(x)"]),
    ("modulebuffer", "nn.ReLU()", "buffered(nn.ReLU())", ["len(list(v.buffers()))", "hasattr(v, 'k')", "list(v.state_dict())", "dict(v.named_buffers())"]),
    ("moduleparam", "nn.ReLU()", "parametered(nn.ReLU())", ["len(list(v.parameters()))", "sum(p.sum() for p in v.parameters())"]),
    ("modulechild", "nn.Sequential(nn.ReLU())", "nn.Sequential(nn.ReLU(), nn.Sigmoid())", ["v(x)", "len(v)", "[type(m).__name__ for m in v.modules()]", "[n for n, _ in v.named_children()]"]),
    ("modulelist", "nn.ModuleList([linear(1)])", "nn.ModuleList([linear(2)])", ["v[0](x)", "[m(x) for m in v]", "v[0].n"]),
    ("moduledict", "nn.ModuleDict({'a': linear(1)})", "nn.ModuleDict({'b': linear(1)})", ["list(v)", "[m(x) for m in v.values()]", "'a' in v"]),
    ("paramlist", "nn.ParameterList([torch.ones(1)])", "nn.ParameterList([torch.ones(1), torch.ones(1)])", ["len(v)", "sum(p for p in v)"]),
    ("frozenparam", "linear(1)", "linear(1).requires_grad_(False)", ["v(x).requires_grad", "v.weight.requires_grad", "[p.requires_grad for p in v.parameters()]"]),
    ("parametrized", "linear(1)", "parametrized(linear(1))", ["v(x)", "v.weight.item()", "type(v).__name__"]),
    ("normmomentum", "nn.BatchNorm1d(1, momentum=None)", "nn.BatchNorm1d(1, momentum=0.5)", ["[v(x.repeat(2, 1).cumsum(0)), v.running_mean][1]", "v.momentum"]),
    ("normeps", "nn.LayerNorm(1, eps=1.0)", "nn.LayerNorm(1, eps=2.0)", ["v.eps", "nn.functional.layer_norm(x, (1,), eps=v.eps)", "v(x)"]),
    ("optimizer", "torch.optim.SGD([torch.ones(1)], lr=1)", "torch.optim.SGD([torch.ones(1)], lr=2)", ["v.param_groups[0]['lr']", "v.defaults['lr']"]),
    ("distribution", "torch.distributions.Normal(0., 1.)", "torch.distributions.Normal(0., 2.)", ["v.log_prob(x)", "v.mean", "v.stddev", "v.entropy()"]),
    ("lock", "threading.Lock()", "locked()", ["v.locked()"]),
    ("string template", "string.Template('$a')", "string.Template('${a}b')", ["v.substitute(a=1)"]),
    ("alias", "list[int]", "list[str]", ["v.__args__", "str(v)"]),
    ("union", "int | str", "int | float", ["isinstance(1.0, v)", "str(v)"]),
    ("property", "property(lambda s: 1)", "property(lambda s: 2)", ["v.fget(0)"]),
    ("environ", "{'A': '1'}", "{'A': '2'}", ["v['A']"]),
]  # fmt: skip

HELPERS = '''
import json, struct
def json_(v): return json.dumps(v)
def struct_(f): return struct.Struct(f)
def kw(**k): return [(n, v) for n, v in k.items()]
def raised(v):
    try: raise v
    except ValueError as e: return "value", e.args
    except KeyError as e: return "key", e.args
def within(v):
    with v as k: return k
def retained(t):
    t.retain_grad()
    return t
def inference():
    with torch.inference_mode(): return torch.ones(1)
def hooked(t):
    t.register_hook(lambda g: g * 5)
    return t
def grads(v): return torch.autograd.grad((v * 2).sum(), v)[0]
def forward_hook(m):
    m.register_forward_hook(lambda m, a, out: out + 10)
    return m
def pre_hook(m):
    m.register_forward_pre_hook(lambda m, a: (a[0] + 10,))
    return m
def buffered(m):
    m.register_buffer("k", torch.ones(1))
    return m
def parametered(m):
    m.k = nn.Parameter(torch.ones(1))
    return m
class Doubled(nn.Module):
    def forward(self, w): return w * 2
def parametrized(m):
    torch.nn.utils.parametrize.register_parametrization(m, "weight", Doubled())
    return m
def locked():
    out = threading.Lock(); out.acquire()
    return out
ALIVE = [attributed(Bag(), k=1), attributed(Bag(), k=2)]
def show(v, depth=0):
    """All that is to be compared of a result."""
    if isinstance(v, torch.Tensor):
        if v.is_meta or v.layout is not torch.strided: return str(v.shape)
        return (str(v.dtype), tuple(v.shape), v.requires_grad, v.detach().resolve_conj().resolve_neg().tolist())
    if isinstance(v, np.ndarray): return ("array", str(v.dtype), v.tolist())
    name = type(v).__name__
    if isinstance(v, types.MappingProxyType): return (name, show(dict(v), depth + 1))
    if isinstance(v, (list, tuple, collections.deque)) and depth < 5: return (name, [show(i, depth + 1) for i in v])
    if isinstance(v, dict) and depth < 5: return (name, [(show(a, depth + 1), show(b, depth + 1)) for a, b in v.items()])
    if isinstance(v, range): return (name, v.start, v.stop, v.step)
    if isinstance(v, (set, frozenset)): return (name, sorted(map(repr, v)))
    text = repr(v)
    return (name, re.sub("0x[0-9a-f]+", "0x", text))
'''

GENERIC = [
    "v", "[v]", "{'k': v}", "type(v).__name__", "v is HELD[0] if type(v).__hash__ is object.__hash__ else 0", "bool(type(v) is type(HELD[1]))", "(lambda: v)()",
    "[w for w in [v]][0]", "isinstance(v, (int, str))", "show(v)",
]  # fmt: skip

# (name, text before; `f` is compiled; `SET` puts `value` there and `CALL` calls). BODY reads `v`.
PLACES: dict[str, tuple[str, str, str, str]] = {
    # name: (parameters of f, how v is found inside, setting, call)
    "argument": ("x, v", "", "", "f(x, value)"),
    "keyword": ("x, *, v", "", "", "f(x, v=value)"),
    "variadic": ("x, *a", "v = a[0]", "", "f(x, value)"),
    "keywords": ("x, **k", "v = k['v']", "", "f(x, v=value)"),
    "list": ("x, a", "v = a[0]", "", "f(x, [value])"),
    "tuple": ("x, a", "v, = a", "", "f(x, (value,))"),
    "nested": ("x, a", "v = a['k'][0][1]", "", "f(x, {'k': [(0, value)]})"),
    "dict": ("x, a", "v = a['k']", "", "f(x, {'k': value})"),
    "ordered": ("x, a", "v = a['k']", "", "f(x, collections.OrderedDict(k=value))"),
    "default dict": ("x, a", "v = a['k']", "", "f(x, collections.defaultdict(int, k=value))"),
    "iterated": ("x, a", "v = next(iter(a))", "", "f(x, [value])"),
    "items": ("x, a", "(_, v), = a.items()", "", "f(x, {'k': value})"),
    "deque": ("x, a", "v = a[0]", "", "f(x, collections.deque([value]))"),
    "attribute": ("x, o", "v = o.held", "", "f(x, attributed(Bag(), held=value))"),
    "same object": ("x", "v = OBJECT.held", "OBJECT.held = value", "f(x)"),
    "slot": ("x, o", "v = o.held", "", "f(x, attributed(Slots(), held=value))"),
    "property": ("x, o", "v = o.held", "", "f(x, Described(value))"),
    "getattr": ("x, o", "v = o.anything", "", "f(x, Getattr(value))"),
    "data": ("x, o", "v = o.a", "", "f(x, Data(value))"),
    "frozen": ("x, o", "v = o.a", "", "f(x, Frozen(value))"),
    "named tuple": ("x, o", "v = o.b", "", "f(x, Named(1, value))"),
    "space": ("x, o", "v = o.held", "", "f(x, types.SimpleNamespace(held=value))"),
    "module type": ("x", "v = MODULE.held", "MODULE.held = value", "f(x)"),
    "nn module": ("x, o", "v = o.held", "", "f(x, NET(value))"),
    "same nn module": ("x", "v = NETWORK.held", "NETWORK.held = value", "f(x)"),
    "class": ("x", "v = Bag.held", "Bag.held = value", "f(x)"),
    "class by instance": ("x, o", "v = o.held", "Bag.held = value", "f(x, Bag())"),
    "global": ("x", "v = GLOBAL", "GLOBAL = value", "f(x)"),
    "global list": ("x", "v = HOLDS[0]", "HOLDS[0] = value", "f(x)"),
    "global dict": ("x", "v = MAPS['k']", "MAPS['k'] = value", "f(x)"),
    "closure": ("x", "v = INNER()", "", "f(x)"),
    "default": ("x, v=None", "", "ORIGINAL.__defaults__ = (value,)", "f(x)"),
    "named default": ("x, *, v=None", "", "ORIGINAL.__kwdefaults__ = {'v': value}", "f(x)"),
    "helper's default": ("x", "v = helper()", "helper.__defaults__ = (value,)", "f(x)"),
    "function attribute": ("x", "v = helper.held", "helper.held = value", "f(x)"),
    "partial": ("x, p", "v = p()", "", "f(x, functools.partial(same, value))"),
    "method": ("x, m", "v = m()", "", "f(x, Holder(value).get)"),
    "function argument": ("x, g", "v = g()", "", "f(x, lambda: value)"),
    "context variable": ("x", "v = VARIABLE.get()", "VARIABLE.set(value)", "f(x)"),
    "thread local": ("x", "v = LOCAL.held", "LOCAL.held = value", "f(x)"),
    "chain map": ("x, a", "v = a['k']", "", "f(x, collections.ChainMap({}, {'k': value}))"),
    "proxy": ("x, a", "v = a['k']", "", "f(x, types.MappingProxyType({'k': value}))"),
    "user dict": ("x, a", "v = a['k']", "", "f(x, collections.UserDict(k=value))"),
    "subclass of dict": ("x, a", "v = a['k']", "", "f(x, Mapped(k=value))"),
    "subclass of list": ("x, a", "v = a[0]", "", "f(x, Listed([value]))"),
    "attribute of list": ("x, a", "v = a.held", "", "f(x, attributed(Listed([]), held=value))"),
    "attribute of tensor": ("x, a", "v = a.held", "", "f(x, attributed(torch.ones(1), held=value))"),
    "generator": ("x, a", "v = next(a)", "", "f(x, (i for i in [value]))"),
    "iterator": ("x, a", "v = next(a)", "", "f(x, iter([value]))"),
    "weak": ("x, r", "v = r().held", "KEPT = attributed(Bag(), held=value)", "f(x, weakref.ref(KEPT))"),
    "dict key object": ("x, o", "v = vars(o)['held']", "", "f(x, attributed(Bag(), held=value))"),
    "exception": ("x, e", "v = e.args[0]", "", "f(x, ValueError(value))"),
    "cell": ("x, c", "v = c.cell_contents", "", "f(x, types.CellType(value))"),
    "metaclass": ("x, c", "v = c.held", "", "f(x, type('K', (), {'held': value}))"),
    "closure of argument": ("x, g", "v = g.__closure__[0].cell_contents", "", "f(x, (lambda value: lambda: value)(value))"),
    "cached": ("x, o", "v = o.held", "", "f(x, Cached(value))"),
    "descriptor": ("x, o", "v = o.held", "Descriptor.value = value", "f(x, Owner())"),
}  # fmt: skip

BODIES = {
    "before": "y = x + 1\nreturn y, {read}",
    "behind": "y = x + 1\nif y.sum().item() > 1e9: y = y * 3\nreturn y * 2, {read}",
    "print": "y = x + 1\nprint(end='')\ny.tolist()\nr = {read}\nreturn y * 2, r",
    "both": "y = x + 1\nr = {read2}\nif y.sum().item() > 1e9: y = y * 3\nreturn y * 2, r, {read}",
    "callee": "def inner(v): return x * 2, {read}\nreturn inner(v)",
    "callee behind": "def inner(x, v):\n    y = x + 1\n    y.tolist()\n    return y, {read}\nr = inner(x, v)\nreturn r, x * 2",
    "modes": "with torch.no_grad():\n    y = x * 2\n    r = {read}\nreturn y, r",
    "loop": "y, r = x, []\nfor i in range(2):\n    r.append({read})\n    y = y + 1\nreturn y, r",
    "condition": "r = show({read})\nreturn x * 2 if hash(str(r)) % 2 else x * 3, r",
    "caught": "try:\n    r = {read}\nexcept Exception as e:\n    r = type(e).__name__, str(e)\nreturn x + 1, r",
    "written": "x.add_(1)\nr = {read}\nreturn x * 2, r",
    "gradient": "w = x.detach().requires_grad_()\ny = (w * w).sum()\ny.backward()\nr = {read}\nreturn w.grad, r",
    "comprehension": "return [x * i for i in range(2)], [{read} for _ in range(1)]",
    "lambda": "return x * 2, (lambda: {read})()",
    "finally": "try:\n    y = x * 2\nfinally:\n    r = {read}\nreturn y, r",
}

SETTING = """
HELD = [None, None]
OBJECT = Bag()
MODULE = types.ModuleType("m")
GLOBAL = None
HOLDS = [None]
MAPS = {}
VARIABLE = contextvars.ContextVar("v")
LOCAL = threading.local()
KEPT = None
class NET(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.held = value
NETWORK = NET(None)
class Holder:
    def __init__(self, value): self.value = value
    def get(self): return self.value
class Cached:
    def __init__(self, value): self.value = value
    @functools.cached_property
    def held(self): return self.value
class Descriptor:
    value = None
    def __get__(self, o, t=None): return Descriptor.value
class Owner:
    held = Descriptor()
def same(v): return v
def helper(v=None): return v
"""


def program(seed: int | str) -> str:
    """Text of a program: `f(x, ...)`, `put(value)` and `call(f, x, value)`, and the two values."""
    choice = random.Random(seed)
    _, first, second, reads = choice.choice(PAIRS)
    read, read2 = (choice.choice(reads if choice.random() < 0.75 else GENERIC) for _ in range(2))
    place, body = choice.choice(list(PLACES)), choice.choice(list(BODIES))
    parameters, find, put, call = PLACES[place]
    text = BODIES[body].format(read=read, read2=read2)
    lines = [f"# {place}; {body}", "def make(cell=None):"]
    lines.append("    def INNER(): return cell")
    lines.append(f"    def f({parameters}):")
    lines += [f"        {line}" for line in ([find] if find else []) + text.splitlines()]
    lines += ["    def refill(value):", "        nonlocal cell", "        cell = value", "    return f, refill"]
    lines += ["def put(value):", "    global GLOBAL, KEPT"]
    lines += [f"    {put or 'pass'}"]
    lines += ["def call(f, x, value):", f"    return {call}"]
    lines += ["def values():", f"    return {first}, {second}"]
    return "\n".join(lines) + "\n"


ORDERS = ["abab", "abba", "aabb", "baab"]


def seen(text: str, order: str, wrap: Any) -> list[Any]:
    """What a caller sees when the program is called with its two values in this order."""
    torch.manual_seed(0)
    random.seed(0)
    choice, module = random.Random(text), types.ModuleType("guard_program")
    sys.modules["guard_program"], scope = module, vars(module)
    exec(_prelude(), scope)
    exec(compile(text, "<program>", "exec"), scope)
    original, refill = scope["make"]()
    scope["ORIGINAL"] = original
    f = wrap(original)
    out: list[Any] = []
    scope["HELD"][:] = scope["values"]()
    for which in order:
        value = scope["values"]()["ab".index(which)] if choice.random() < 0.5 else scope["HELD"]["ab".index(which)]
        x = torch.ones(1)
        try:
            refill(value)
            scope["put"](value)
            out.append(scope["show"](scope["call"](f, x, value)))
        except Exception as error:
            out.append((type(error).__name__, str(error).split("\n")[0]))
        out.append(scope["show"](x))
    return out


_CODE: list[Any] = []


def _prelude() -> Any:
    if not _CODE:
        _CODE.append(compile(DEFINITIONS + HELPERS + SETTING, "<definitions>", "exec"))
    return _CODE[0]


def compiled(fn: Any) -> Any:
    """`fn`, captured; its graphs run in eager."""
    return compile_callable(fn, eager_graph, Options(recompile_limit=30))


def differs(seed: int | str) -> str | None:
    """The program of this seed, with what is seen, where it differs from eager."""
    text = program(seed)
    order = random.Random(f"order {seed}").choice(ORDERS)
    expected = seen(text, order, lambda fn: fn)
    if expected != seen(text, order, lambda fn: fn):
        return None
    try:
        made = seen(text, order, compiled)
    except Exception as error:
        return f"# seed {seed}, {order}\n{text}# {type(error).__name__}: {error}"
    at = next((i for i, pair in enumerate(zip(made, expected, strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        return None
    return f"# seed {seed}, {order}, fact {at}\n{text}# compiled {str(made[at])[:300]}\n# eager    {str(expected[at])[:300]}"


if __name__ == "__main__":
    sys.exit(int(sweep(__doc__, differs) > 0))
