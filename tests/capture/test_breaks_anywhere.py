"""Python's features, each with a graph break before each of its lines, give and leave the same as without."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import random
import struct
import textwrap
import typing
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import smelt
from tests.fuzz.snapshot import Snapshot

USED = (
    abc,
    collections,
    copy,
    dataclasses,
    datetime,
    decimal,
    enum,
    fractions,
    functools,
    itertools,
    numpy,
    struct,
    typing,
    weakref,
)
"""What the programs use."""
CLASSES = r"""
G_n = 0
G_l = [1]
G_d = {"x": 1}
class O:
    k = 3
    log = []
    def __init__(self, a): self.a = a
    def __repr__(self): return f"O({self.a})"
    def __eq__(self, other): return isinstance(other, O) and self.a == other.a
    def __hash__(self): return hash(self.a)
    def __lt__(self, other): return self.a < other.a
    def __add__(self, other): return O(self.a + getattr(other, "a", other))
    def __iadd__(self, other): self.a += other; return self
    def __getitem__(self, i): return (self.a, i)
    def __len__(self): return self.a
    def __contains__(self, i): return i == self.a
    def __call__(self, v): return v + self.a
    def __enter__(self): self.a += 1; return self
    def __exit__(self, *e): self.a -= 1; self.last = e[0]; return e[0] is KeyError
    def __iter__(self): return iter([self.a, self.a + 1])
    @property
    def double(self): return self.a * 2
    @double.setter
    def double(self, v): self.a = v // 2
    @classmethod
    def make(cls, a): return cls(a)
    @staticmethod
    def st(a): return a + 1
    @functools.cached_property
    def cached(self): return self.a + 100
    @functools.lru_cache
    def memo(self, q): return q * 2
class B(O):
    def __init__(self, a): super().__init__(a + 1); self.extra = [a]
    @property
    def double(self): return super().double + 1
class Desc:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, obj, owner=None): return self if obj is None else getattr(obj, self.name, 0)
    def __set__(self, obj, v): setattr(obj, self.name, v + 1)
class W:
    d = Desc()
    __slots__ = ("_d", "q")
class Ga:
    def __init__(self): self.store = {}
    def __getattr__(self, n):
        if n.startswith("z"): return n
        raise AttributeError(n)
    def __setattr__(self, n, v): object.__setattr__(self, n, v)
@dataclasses.dataclass
class DC:
    a: int = 1
    b: list = dataclasses.field(default_factory=list)
    c: typing.ClassVar[int] = 4
    def __post_init__(self): self.d = self.a + 1
@dataclasses.dataclass(frozen=True, order=True)
class FR:
    a: int = 1
    b: tuple = ()
class Color(enum.Enum):
    RED = 1
    BLUE = 2
    @property
    def up(self): return self.name.upper()
class Perm(enum.Flag):
    R = 1
    W = 2
class Num(enum.IntEnum):
    ONE = 1
    TWO = 2
NT = typing.NamedTuple("NT", [("a", int), ("b", list)])
class Cm:
    def __init__(self, sink): self.sink = sink
    def __enter__(self): self.sink.append("in"); return self
    def __exit__(self, t, v, tb): self.sink.append(("out", t and t.__name__)); return False
@contextlib.contextmanager
def cm(sink):
    sink.append("enter")
    try: yield sink
    except ValueError: sink.append("caught")
    finally: sink.append("leave")
def gen(n):
    got = None
    for i in range(n):
        got = yield (i, got)
    return "done"
def deco(f):
    @functools.wraps(f)
    def inner(*a, **k): return ("deco", f(*a, **k))
    return inner
class Meta(type):
    def __call__(cls, *a): obj = super().__call__(*a); obj.meta = True; return obj
class Mm(metaclass=Meta):
    def __init__(self, a): self.a = a
class Ab(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class Ac(Ab):
    def f(self): return 5
"""
PROGRAMS = r"""
r = []
for i, v in enumerate(l):
    r.append((i, v))
else:
    r.append("else")
y = x + len(r)
return r, y
---
it = iter(l)
a = next(it)
y = x + a
b = next(it)
b.append(5)
return a, b, list(it), y
---
it = zip(l, itertools.count(3), "abc")
a = next(it)
y = x * 2
rest = list(it)
return a, rest, y
---
g = gen(3)
a = next(g)
y = x + 1
b = g.send(7)
try:
    while True:
        next(g)
except StopIteration as e:
    c = e.value
return a, b, c, y
---
s.add(10)
t = s | {4}
t -= {1}
y = x + len(t)
s.discard(2)
u = s & t
return sorted(t), sorted(u), y, 3 in s
---
d["c"] = l
d.setdefault("e", []).append(x)
y = x + 1
k = list(d.items())
d.pop("a")
return k, d, y
---
o.a += 2
y = x + o.a
o.double = 20
z = o(y)
o += 3
return o, z, o.double, o[2], len(o), 13 in o
---
c = copy.copy(o)
c.a = 50
e = copy.deepcopy([o, l])
e[1][1].append(1)
y = x + c.a
return c, e, y, o == c
---
with o as p:
    y = x + p.a
    if o.a > 100:
        raise KeyError("a")
q = o.a
return y, q
---
sink = []
with Cm(sink) as c, cm(sink) as t:
    y = x + 1
    t.append("body")
return sink, y
---
sink = []
try:
    with Cm(sink):
        y = x + 1
        raise RuntimeError("boo")
except RuntimeError as e:
    sink.append(str(e))
finally:
    sink.append("fin")
return sink, y
---
sink = []
with cm(sink):
    y = x + 1
    raise ValueError("a")
z = y * 2
return sink, z
---
def outer(n):
    total = 0
    def inner(m):
        nonlocal total
        total += m
        return total
    inner(n)
    y = x + inner(2)
    return y, total, inner
y, t, f = outer(3)
return y, t, f(1)
---
global G_n
G_n += 1
G_l.append(G_n)
y = x + G_n
G_d["x"] = y
G_n *= 2
return y, G_n
---
match l:
    case [1, [a, *rest], {"k": v}]:
        y = x + a
        r = (a, rest, v)
    case _:
        y, r = x, None
return y, r
---
r = []
for v in (1, "a", o, {"z": 1}, None, (1, 2), DC(3)):
    match v:
        case int(): r.append("int")
        case str() as q: r.append(q)
        case {"z": z}: r.append(z)
        case DC(a=n): r.append(n)
        case (a, b): r.append(a + b)
        case None: r.append(None)
        case _: r.append("other")
y = x + len(r)
return r, y
---
c = DC(o.a)
c.b.append(x)
y = x + c.d
f = dataclasses.replace(c, a=9)
e = dataclasses.asdict(DC(2, [1]))
return c, f, e, y, DC(1) == DC(1), c.c
---
f = FR(o.a, (1,))
y = x + f.a
try:
    f.a = 3
except dataclasses.FrozenInstanceError as e:
    m = str(e)
return f, y, m, f < FR(9), hash(f) == hash(FR(o.a, (1,)))
---
c = Color(1)
y = x + c.value
n = [m.name for m in Color]
p = Perm.R | Perm.W
return c, y, n, c.up, Color["BLUE"], p, Perm.R in p, Num.ONE + 1
---
b = B(o.a)
y = x + b.double
b.extra.append(o)
b.double2 = 4
return b.a, y, b.extra, isinstance(b, O), b.cached, vars(b), B.__mro__[1].__name__
---
w = W()
w.d = o.a
y = x + w.d
w.q = l
del w.q
return y, w.d, hasattr(w, "q")
---
g = Ga()
g.t = 3
y = x + g.t
try:
    g.missing
except AttributeError as e:
    m = str(e)
return y, g.zed, m, getattr(g, "qq", 7)
---
h = functools.partial(o, 3)
k = functools.reduce(lambda a, b: a + b, [1, 2, o.a])
y = x + h()
f = deco(lambda v: v + k)
return h(), k, y, f(2), f.__name__
---
a, *b, c = l
(p, q), r = (1, 2), 3
y = x + p
b[0].append(o)
a, c = c, a
return a, b, c, y, q, r
---
y = x + 1
try:
    try:
        raise ValueError(1)
    except ValueError as e:
        raise KeyError(2) from e
except KeyError as e:
    c = e.__cause__
    y = y * 2
return y, type(c).__name__, c.args
---
r = []
for i in range(5):
    if i == 1:
        continue
    try:
        if i == 3:
            break
        r.append(i)
    finally:
        r.append("f")
    y = x + i
return r, y
---
y = x
i = 0
while True:
    i += 1
    y = y + 1
    if i > o.a:
        break
return y, i
---
f = f"{o!r:>6}|{o.a:03d}|{l}|{x.shape}|{o.a=}"
t = "%s %r %d" % (o, l, o.a)
u = "{0.a} {1[0]} {k}".format(o, l, k=d)
y = x + len(f)
return f, t, u, y, str(o), repr([o])
---
q = collections.deque(l, maxlen=4)
q.appendleft(0)
y = x + len(q)
q.rotate(1)
c = collections.Counter("abca")
c.update("a")
dd = collections.defaultdict(list)
dd["q"].append(x)
od = collections.OrderedDict(a=1, b=2)
od.move_to_end("a")
return q, c, dd, od, y, c.most_common(1)
---
n = NT(1, l)
y = x + n.a
m = n._replace(a=4)
n.b.append("z")
a, b = m
return n, m, y, n._asdict(), a, b is l
---
r = sorted([O(3), o, O(2)])
y = x + r[0].a
r.sort(key=lambda v: -v.a)
m = max(r)
return r, y, m, min(r, key=lambda v: v.a), o in r, r.index(o)
---
h = {o: 1, O(7): 2}
y = x + h[O(7)]
h[O(o.a)] = 5
return h, y, O(7) in h, h.get(O(99)), {o, O(o.a)}
---
c = [v + y0 for y0 in (1, 2) for v in [1, 2] if v != y0]
e = {k: v for k, v in d.items()}
f = {v % 2 for v in range(4)}
g = list(v for v in l if not isinstance(v, int))
y = x + sum(c)
return c, e, f, g, y
---
z = (n := len(l)) + 1
y = x + n
w = [m := i for i in range(3)]
return z, y, w, m
---
v = list(map(lambda a, b: (a, b), l, "xyz"))
f = list(filter(None, [0, 1, o.a]))
y = x + len(v)
k = dict(zip("ab", l))
r = list(reversed(l))
return v, f, y, k, r, any(l), all(l)
---
a = numpy.array([1, 2, 3])
b = a * o.a
y = x + torch.from_numpy(b)
c = b.sum()
a[0] = 9
return a, b, y, int(c), b.shape, b.tolist()
---
m = Mm(o.a)
y = x + m.a
return y, m.meta, m, Ac().f(), isinstance(Ac(), Ab)
---
y = x + 1
del d["a"]
try:
    d["a"]
except KeyError as e:
    m = e.args
l[1:2] = [7, 8]
del l[0]
l *= 2
return y, m, l, d
---
p = iter(o)
y = x + next(p)
a, b = o
return y, a, b, list(o), [*o, 9], {**d, "n": 1}
---
f = lambda *a, k=1, **kw: (a, k, kw)
r = f(1, *l, k=o.a, **{"z": 2})
y = x + len(r[0])
def g(a, /, b, *, c=3): return a, b, c
return r, y, g(1, 2), g(1, b=2, c=l)
---
t = [[0] * 2] * 2
t[0][0] = o
y = x + 1
t[1][1] = y
return t, t[0] is t[1], y
---
y = x + 1
l.append(l)
z = y + len(l)
l.pop()
return z, l
---
it = itertools.groupby([1, 1, 2], key=lambda v: v)
r = [(k, list(g)) for k, g in it]
c = list(itertools.chain(l, d))
y = x + len(c)
p = list(itertools.product([1, 2], "ab"))
a = list(itertools.accumulate([1, 2, o.a], lambda q, w: q * w))
return r, c, y, p, a, list(itertools.islice(itertools.cycle([1, 2]), 3))
---
def rec(n): return n if n <= 0 else n + rec(n - 1)
y = x + rec(o.a)
def even(n): return True if n == 0 else odd(n - 1)
def odd(n): return False if n == 0 else even(n - 1)
return y, even(4)
---
r = []
with contextlib.ExitStack() as st:
    st.enter_context(Cm(r))
    st.callback(r.append, "cb")
    y = x + 1
with contextlib.suppress(KeyError):
    raise KeyError(1)
with contextlib.nullcontext(5) as n:
    y = y + n
return r, y, n
---
s1 = set(l[:1]) ^ s
f = frozenset(s1)
y = x + len(f)
s.update([20, 21])
s -= {20}
return sorted(f), y, f <= s | f, {f: 1}
---
y = x + 1
a = o.memo(3)
b = o.cached
o.a = 30
c = o.cached
return y, a, b, c
---
setattr(o, "dyn", l)
y = x + len(o.dyn)
delattr(o, "dyn")
o.__dict__["raw"] = 3
v = vars(o)
v["via"] = 4
return y, hasattr(o, "dyn"), o.raw, o.via, O.make(4), o.st(3), type(o).__name__
---
O.k = O.k + 1
y = x + o.k
O.log.append(o.a)
o.k = 9
return y, O.k, o.k
---
e = None
try:
    y = x + 1
    l[99]
except (IndexError, KeyError) as err:
    e = err
    y = x + 2
else:
    y = x + 3
finally:
    z = y + 1
return z, str(e)
---
class_ = type("Dyn", (O,), {"z": 3})
c = class_(2)
y = x + c.z
return y, c.a, class_.__name__, isinstance(c, O)
---
y = x + 1
assert o.a, "zero"
w = y.sum() if o.a > 3 else y.mean()
u = None or l and d
v = not u
k = 1 < o.a < 100
return w, u, v, k
---
import math
from collections import abc as cabc
y = x + math.floor(2.5)
return y, isinstance(l, cabc.Sequence), math.isclose(0.1 + 0.2, 0.3), math.prod([1, 2, o.a])
---
ref = weakref.ref(o)
y = x + ref().a
wd = weakref.WeakKeyDictionary()
wd[o] = 3
return y, ref() is o, wd[o]
---
b = bytearray(b"ab")
b.append(o.a)
mv = bytes(b)
y = x + len(mv)
st = struct.pack("<i", o.a)
return mv, y, st, b.hex(), int.from_bytes(st, "little")
---
sl = slice(0, o.a)
y = x[sl]
t = l[sl]
r = range(0, 10, o.a + 1)
return y, t, list(r), len(r), r[-1], sl.indices(3)
---
f = fractions.Fraction(o.a, 3)
g = f + 1
dec = decimal.Decimal("1.5") * o.a
y = x + float(g)
td = datetime.timedelta(days=o.a)
return g, dec, y, td.days, f < g
---
def g2():
    yield 1
    y = yield from gen(2)
    yield y
r = list(g2())
y = x + len(r)
return r, y
---
y = x + 1
z = [y, y]
z[0] += 1
y2 = y
y2 = y2 * 2
t = (y, z[0] is y)
return z, y, y2, t
---
x2 = x.clone()
v = x2[1:]
v += o.a
x2[0] = 7
w = x2.view(3, 1)
w.mul_(2)
return x2, v, w
---
lst = [x, x * 2]
lst[0], lst[1] = lst[1], lst[0]
tot = sum(lst)
m = {k: t + 1 for k, t in zip("ab", lst)}
return lst, tot, m, torch.stack(lst).shape
---
if x.sum() > 4:
    y = x + 1
    l.append("big")
else:
    y = x - 1
    l.append("small")
return y, l
---
n = int(x.sum())
y = x + n
r = []
for i in range(n):
    r.append(i)
return y, r, n
---
for v in x.tolist():
    if v > 1:
        break
else:
    v = -1
y = x * v
return y, v
""".strip().split("\n---\n")


def outcome(lines: list[str], compiled: bool) -> Any:
    """What two calls give and leave, between which the arguments are changed."""
    names = dict(globals())
    exec(CLASSES, names)
    exec("def fn(x, o, l, d, s):\n" + textwrap.indent("\n".join(lines), "    "), names)
    function = smelt.compile(names["fn"], backend="eager") if compiled else names["fn"]
    inner, held = [2, 3], [2]
    o, listed, d, s = names["O"](1), [1, inner, {"k": 4}], {"a": 1, "b": held}, {1, 2, 3}
    random.seed(0)
    out = []
    for call in range(2):
        shown = Snapshot()
        if call:
            o.a = 5
            inner.append(9)
            held.append(7)
            s.add(8)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                result = shown(function(torch.arange(3.0) + call, o, listed, d, s))
        except Exception as error:
            result = type(error).__name__, str(error)
        left = {name: shown(value) for name, value in names.items() if name.startswith("G_")}
        out.append((result, printed.getvalue(), shown([vars(o), listed, d, s]), left))
    return out


def with_breaks(program: str) -> Iterator[list[str]]:
    """The program as it is, and with a break before each statement."""
    lines = program.split("\n")
    yield lines
    for at, line in enumerate(lines):
        said = line.strip()
        inside = at and lines[at - 1].strip().startswith("match ")
        if said and not inside and not said.startswith(("else", "elif", "except", "finally", "case")):
            indent = line[: len(line) - len(line.lstrip())]
            yield [*lines[:at], f"{indent}smelt.graph_break()", *lines[at:]]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_break_before_each_line(number: int) -> None:
    eager = outcome(PROGRAMS[number].split("\n"), False)
    for lines in with_breaks(PROGRAMS[number]):
        assert outcome(lines, True) == eager, "\n".join(lines)
