# ruff: noqa: B905, UP031, E501
"""Python semantics: control flow, closures, containers, calls, exceptions. Everything without a graph break."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import typing

import pytest
import torch
import torch.nn.functional as F

from tests.capture.harness import check, compiled, raises, same

X = torch.arange(6.0).reshape(2, 3)
SCALE = 3
TABLE = {"a": 1, "b": [2, 3]}
WEIGHT = torch.full((3,), 2.0)


def square(x):
    return x * x


def scaled(x, k=2, *rest, flag=True, **more):
    out = x * k + sum(rest)
    return out + len(more) if flag else out


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: int = 1

    def total(self):
        return self.left + self.right


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: int
    tags: tuple = ()


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: int


class Meter:
    unit = "m"
    count = 0

    def __init__(self, start):
        self.value = start

    @property
    def double(self):
        return self.value * 2

    @double.setter
    def double(self, new):
        self.value = new / 2

    @classmethod
    def make(cls, start):
        return cls(start)

    @staticmethod
    def plus(a, b):
        return a + b

    def __add__(self, other):
        return Meter(self.value + (other.value if isinstance(other, Meter) else other))

    def __radd__(self, other):
        return self + other

    def __call__(self, x):
        return x * self.value

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.value * i

    def __contains__(self, item):
        return item == "in"

    def __eq__(self, other):
        return isinstance(other, Meter) and other.unit == self.unit

    def __hash__(self):
        return 7

    def __repr__(self):
        return "Meter!"

    def __getattr__(self, name):
        if name.startswith("times"):
            return self.value * int(name[5:])
        raise AttributeError(name)


class Sub(Meter):
    def __init__(self, start):
        super().__init__(start + 1)

    @property
    def double(self):
        return super().double + 1


class Managed:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(kind.__name__ if kind else "out")
        return kind is KeyError


@contextlib.contextmanager
def block(log, name):
    log.append(name)
    try:
        yield len(log)
    finally:
        log.append("end " + name)


def counting(n):
    for i in range(n):
        got = yield i
        if got is not None:
            yield got * 10


def delegating(n):
    result = yield from counting(n)
    yield result


def gen_return():
    yield 1
    return 5


def repeat(times):
    def decorate(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            for _ in range(times - 1):
                fn(*args, **kwargs)
            return fn(*args, **kwargs)

        return inner

    return decorate


@repeat(2)
def decorated(x, by=1):
    """doc"""
    return x + by


@functools.lru_cache
def cached(n):
    return n * 2


VARIABLE = contextvars.ContextVar("variable", default=4)

CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


@case
def arithmetic(x):
    y = x + 1 - 2.5 * x / 3**2
    y = -y @ x.t()
    return y // 2, y % 3, +y, y.abs() ** 0.5, 7 // 2, 7 % 4, 2**5 | 1, ~5, 6 & 3, 1 << 4, 9 >> 1, 5 ^ 1


@case
def in_place(x):
    y = x.clone()
    y += 1
    y *= x
    y -= 0.5
    y[0] = 9
    y[:, 1] += 2
    n = 3
    n += 4
    items = [1]
    items += [2]
    return y, n, items


@case
def comparisons(x):
    chain = 1 < x.shape[0] <= 2 != 5
    return x > 1, x == x, x != 0, chain, "a" < "b", [1, 2] == [1, 2], (x is None), x is not None


@case
def branches(x):
    out = x
    if x.dim() == 2 and x.size(0) > 1:
        out = out + 1
    elif x.dim() > 5:
        out = out - 1
    else:
        out = out * 0
    return out if not SCALE > 5 else None


@case
def ternary_and_or(x):
    a = None or x
    b = x.shape and 5
    c = [] or [1]
    return a, b, c, not c, x.numel() > 100 or "small"


@case
def loops(x):
    total = 0
    for i, row in enumerate(x):
        if i == 5:
            break
        for j in range(3):
            if j == 1:
                continue
            total = total + row * j
    else:
        total = total + 1
    k = 0
    while True:
        k += 1
        if k > 3:
            break
    while k < 10:
        k += 2
    else:
        k += 100
    return total, k


@case
def comprehensions(x):
    a = [x * i for i in range(3) if i != 1]
    b = {k: v * 2 for k, v in zip("ab", a)}
    c = {i % 2 for i in range(5)}
    d = tuple(i + j for i in range(2) for j in range(2))
    e = [[x + i * j for i in range(2)] for j in range(2)]
    return a, b, c, d, e


@case
def unpacking(x):
    a, b = x
    (c, *d), e = [1, 2, 3], 4
    first, *middle, last = range(5)
    return a + b, c, d, e, [*middle, first, *d], {**{"k": 1}, "l": last}, (*x,)


@case
def strings(x):
    name = f"{x.shape[0]:>4}|{SCALE!r}|{'q':*^5}|{3.14159:.2f}"
    return name, "%s-%d" % ("a", 3), f"{1}{2}", ",".join(str(i) for i in range(3)), name.upper().split("|")


@case
def calls(x):
    args, kwargs = (3, 4), {"flag": False, "extra": 1}
    return scaled(x), scaled(x, 5), scaled(x, *args), scaled(x, *args, **kwargs), scaled(k=1, x=x), square(x=x)


@case
def lambdas(x):
    fn = lambda v, k=SCALE: v * k  # noqa: E731
    return fn(x), (lambda *a: len(a))(1, 2), [f(x) for f in (torch.sin, fn, square)]


@case
def closures(x):
    count = 0

    def bump(by=1):
        nonlocal count
        count += by
        return x * count

    first = bump()
    second = bump(5)
    return first, second, count


@case
def recursion(x):
    def power(v, n):
        return v if n == 1 else v * power(v, n - 1)

    return power(x, 4)


@case
def decorators(x):
    return decorated(x, by=3), decorated.__name__, decorated.__doc__


@case
def partials(x):
    fn = functools.partial(scaled, k=4)
    return fn(x), functools.partial(fn, flag=False)(x), functools.reduce(operator.add, [x, x, x])


@case
def lru(x):
    return x * cached(3)


@case
def builtins_on_plain(x):
    items = [3, 1, 2]
    return (
        sorted(items, key=lambda v: -v), sorted(items, reverse=True), max(items), min(1, 2), sum(items), any([0, 1]),
        all([]), list(map(str, items)), list(filter(None, [0, 1])), list(zip(items, "abc")), list(reversed(items)),
        abs(-3), round(2.6), divmod(7, 2), pow(2, 3), len(items), isinstance(3, (int, str)), callable(square),
        type(x).__name__, getattr(x, "nope", 5), hasattr(x, "shape"), issubclass(bool, int), int("3"), float("2"),
        bool([]), str(3), repr("a"), chr(65), ord("A"), hex(255), slice(1, 2), id(x) == id(x),
    )  # fmt: skip


@case
def more_containers(x):
    d = collections.OrderedDict(a=1)
    d["t"] = x
    d.move_to_end("a")
    q = collections.deque([1, 2], maxlen=3)
    q.appendleft(0)
    q.append(x.shape[0])
    dd = collections.defaultdict(list)
    dd["k"].append(x + 1)
    c = collections.Counter("aab")
    return d, list(q), dict(dd), c["a"], dict(c)


@case
def dict_methods(x):
    d = {"a": x, "b": 2}
    d.update(c=3)
    d.setdefault("d", x * 2)
    popped = d.pop("b")
    d |= {"e": 5}
    return list(d.items()), list(d.keys()), d.get("zz"), d.get("zz", 1), popped, "a" in d, len(d), {**d}


@case
def list_methods(x):
    items = [2, x]
    items.append(3)
    items.extend((4, 5))
    items.insert(0, "first")
    items.remove(2)
    last = items.pop()
    del items[2]
    copy = items[:]
    copy.reverse()
    return items, last, copy, copy.index(4), [0] * 3, items + [1], (1, 2) + (3,)


@case
def sets(x):
    s = {1, 2}
    s.add(3)
    s |= {4}
    return s & {1, 4}, s - {1}, frozenset(s), 3 in s


@case
def dataclass_instances(x):
    p = Pair(x)
    q = dataclasses.replace(p, right=5)
    p.left = p.left * 2
    return p, q, q.total(), p.right, dataclasses.is_dataclass(p), [f.name for f in dataclasses.fields(p)], Frozen(3)


@case
def named_tuples(x):
    p = Point(x, 2)
    a, b = p
    return p, p.x + b, p._replace(y=3), p[1], p._fields, a is p.x


@case
def user_objects(x):
    m = Meter(2)
    n = m + 1
    m.double = 10
    return (
        n.value, m.double, m(x), len(m), m[4], "in" in m, 3 + m == m, m != 4, Meter.make(3).value, Meter.plus(1, 2),
        m.unit, m.times7, hasattr(m, "nope"), f"{m}", str(m), repr(m), bool(m), hash(m), type(m) is Meter,
    )  # fmt: skip


@case
def inheritance(x):
    s = Sub(2)
    return s.value, s.double, isinstance(s, Meter), Sub.__mro__[1] is Meter, x * s.value


@case
def returned_object(x):
    m = Meter(x)
    m.extra = [x, {"k": m.value + 1}]
    return m.extra, m.value


@case
def enums(x):
    c = Color.RED
    return x * c.value, c is Color.RED, Color["BLUE"].name, Color(2) == Color.BLUE, [e.value for e in Color]


@case
def exceptions(x):
    log = []
    for value in (0, 1, "s"):
        try:
            log.append(10 // value)
        except ZeroDivisionError as error:
            log.append(str(error))
        except (TypeError, ValueError):
            log.append("type")
        else:
            log.append("fine")
        finally:
            log.append("done")
    try:
        {}["missing"]
    except KeyError as error:
        log.append(error.args)
    return x + 1, log


@case
def raising(x):
    def inner():
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise RuntimeError("outer") from error

    try:
        inner()
    except RuntimeError as error:
        return x, str(error), str(error.__cause__)


@case
def reraise(x):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise
    except LookupError as error:
        return x * 2, type(error).__name__


@case
def finally_return(x):
    def inner():
        for i in range(3):
            try:
                if i == 1:
                    return i
            finally:
                log.append(i)

    log = []
    return x, inner(), log


@case
def with_statements(x):
    log = []
    with Managed(log) as m, block(log, "b") as n:
        m.log.append(n)
        y = x + n
    with Managed(log):
        raise KeyError("swallowed")
    with contextlib.suppress(ValueError):
        raise ValueError
    with contextlib.nullcontext(3) as three, contextlib.ExitStack() as stack:
        stack.enter_context(block(log, "stack"))
        log.append(three)
    return y, log


@case
def generators(x):
    g = counting(2)
    a = next(g)
    b = g.send(x)
    rest = list(g)
    return a, b, rest, list(delegating(2)), sum(x * i for i in range(3)), tuple(itertools.chain([1], counting(2)))


@case
def generator_protocol(x):
    g = gen_return()
    next(g)
    try:
        next(g)
    except StopIteration as stop:
        value = stop.value
    h = counting(3)
    next(h)
    h.close()
    return x, value, next(h, "done"), next(iter([]), None)


@case
def itertools_functions(x):
    return (
        list(itertools.product([1, 2], "a")), list(itertools.islice(itertools.count(), 3)),
        list(itertools.accumulate([x, x, x])), list(itertools.zip_longest([1], [2, 3])),
        [list(g) for _, g in itertools.groupby([1, 1, 2])], list(itertools.starmap(scaled, [(x, 2)])),
    )  # fmt: skip


@case
def matching(x):
    out = []
    for value in (1, "a", [1, 2, 3], {"k": 5, "z": 1}, Frozen(3), (4, 5), None):
        match value:
            case 1 | 2:
                out.append("number")
            case str() as text:
                out.append(text)
            case [first, *rest] if len(rest) == 2:
                out.append((first, rest))
            case {"k": k, **others}:
                out.append((k, others))
            case Frozen(value=v):
                out.append(v)
            case (a, b):
                out.append(a + b)
            case _:
                out.append("other")
    return x, out


@case
def globals_and_types(x):
    return x * SCALE + TABLE["a"] + TABLE["b"][1], x @ WEIGHT, "a" in TABLE, list(TABLE), TABLE.get("c", 4)


@case
def tensor_attributes(x):
    return (
        x.shape, x.dtype, x.device.type, x.ndim, x.T, x.requires_grad, x.size(), x.size(1), x.numel(), x.dim(),
        x.stride(), x.is_contiguous(), len(x), x.is_floating_point(), isinstance(x, torch.Tensor), x.element_size(),
        torch.is_tensor(x), x.mT.shape, x.layout, x.is_cuda, x.shape.numel(), tuple(x.shape[:-1]) + (1,),
    )  # fmt: skip


@case
def tensor_indexing(x):
    index = torch.tensor([1, 0])
    return x[0], x[..., -1], x[:, 1:], x[None], x[index], x[x.shape[0] - 1, 2], x[[0, 1]], x[:, None, ::2], x[0][1]


@case
def factories(x):
    return (
        torch.zeros(2, 3) + x,
        torch.arange(3),
        torch.ones_like(x),
        x.new_zeros(2),
        torch.full((2,), 3.0),
        torch.eye(2),
    )


@case
def random_numbers(x):
    return torch.rand(2), x + torch.randn_like(x), F.dropout(x, 0.5), torch.randint(0, 9, (3,))


@case
def functional(x):
    y = F.softmax(F.relu(x), dim=-1)
    z = F.layer_norm(y, (3,), torch.ones(3), torch.zeros(3))
    return z, F.pad(z, (1, 1)), torch.einsum("ij,kj->ik", z, z), F.cross_entropy(z, torch.tensor([0, 1]))


@case
def multiple_results(x):
    values, index = x.max(dim=1)
    result = torch.topk(x, 2)
    a, b = x.split(1)
    return values, index, result.values, a, b, torch.sort(x, descending=True).indices, x.unbind(1), x.chunk(3, 1)[2]


@case
def structured_result_returned(x):
    return x.max(dim=1), torch.linalg.qr(x)


@case
def same_tensor_twice(x):
    y = x + 1
    return [y, y, (y,)], x


@case
def view_and_mutate(x):
    y = x.clone()
    v = y.view(-1)
    v[0] = 100
    y.add_(1)
    return y, v


@case
def mutate_argument(x):
    x.mul_(2)
    x[0, 0] = -1
    return x.sum()


@case
def out_argument(x):
    out = torch.empty(2, 3)
    torch.add(x, 1, out=out)
    return out


@case
def grad_modes(x):
    with torch.no_grad():
        a = x * 2
        inner = torch.is_grad_enabled()
        with torch.enable_grad():
            b = x * 3
    torch.set_grad_enabled(False)
    off = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return a, b, inner, off, torch.is_grad_enabled(), a.requires_grad


@case
def autocast_region(x):
    w = torch.ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        inside = torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False):
            z = x @ w
    return y, z, inside, torch.is_autocast_enabled("cpu")


@case
def compiling_flags(x):
    return x, torch.jit.is_scripting(), torch.jit.is_tracing()


@case
def introspection(x):
    names = list(inspect.signature(scaled).parameters)
    return x, names, scaled.__name__, square.__code__.co_argcount, Meter.__name__, x.__class__.__name__


@case
def math_functions(x):
    return x * math.sqrt(4.0), math.pi, math.prod([2, 3]), math.ceil(1.2), operator.itemgetter(1)([1, 2])


@case
def context_variables(x):
    return x * VARIABLE.get()


@case
def star_args_forwarding(x):
    def outer(*args, **kwargs):
        return scaled(*args, **kwargs)

    return outer(x, 3, 4, flag=True, more=1)


@case
def keyword_only(x):
    def fn(a, /, b, *, c=3, d):
        return a + b + c + d

    return fn(x, 1, d=2), fn(x, b=2, c=0, d=1)


@case
def walrus_and_del(x):
    if (n := x.shape[0]) > 1:
        y = x * n
    z = y
    del y
    return z


@case
def nested_data(x):
    data = {"a": [x, {"b": (x + 1, None)}], "c": Pair(x)}
    data["a"][1]["b"] = data["a"][1]["b"] + (3,)
    return data


@case
def shared_list(x):
    a = [x]
    b = {"one": a, "two": a}
    a.append(1)
    return b["one"] is b["two"], b


@case
def assertions(x):
    assert x.shape[0] == 2, "rows"
    torch._assert(x.shape[1] == 3, "columns")
    return x


@case
def default_dict_of_tensors(x):
    stats = {}
    for i, row in enumerate(x):
        stats.setdefault("rows", []).append(row)
        stats[f"r{i}"] = row.sum()
    return stats


@case
def local_import(x):
    import math as m
    from collections import OrderedDict

    return x * m.e, OrderedDict(a=1)


@case
def setattr_getattr(x):
    m = Meter(1)
    m.value = 5
    m.__dict__["other"] = 6
    delattr(m, "value")
    return x, m.other, "value" in m.__dict__, vars(m), m.unit


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name):
    check(CASES[name], X)


def test_inner_function_is_rebuilt():
    def fn(x, k):
        y = x * k

        def inner(z, w=3):
            return z + y + w

        return inner

    made = compiled(fn, fullgraph=True)(X, 2)
    assert torch.equal(made(X), fn(X, 2)(X)) and made.__name__ == "inner"


def test_user_exceptions_are_eagers():
    def fn(x):
        y = x + 1
        if x.shape[0] == 2:
            raise ValueError(f"bad {tuple(x.shape)}")
        return y

    raises(fn, ValueError, X)
    raises(lambda x: x @ x, RuntimeError, X)
    raises(lambda x: x.nope, AttributeError, X)
    raises(lambda x: {}[3], KeyError, X)


class Says:
    """Its special methods give what they are told to."""

    def __init__(self, answer):
        self.answer = answer

    def __bool__(self):
        return self.answer

    def __iter__(self):
        return self.answer


class Counts:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def test_the_result_of_bool_must_be_a_bool():
    for answer in (None, 1, "yes"):
        raises(lambda x, answer=answer: x if Says(answer) else x + 1, TypeError, X)
    raises(lambda x: x if Says(x.sum()) else x + 1, TypeError, X)
    raises(lambda x: x if Says(iter(x)) else x + 1, TypeError, X)
    check(lambda x: x if Says(x.shape[0] > 1) else x + 1, X)


def test_a_length_is_a_whole_number():
    for count, error in ((-1, ValueError), (2.5, TypeError), ("two", TypeError), (1 << 70, OverflowError)):
        raises(lambda x, count=count: x + len(Counts(count)), error, X)
        raises(lambda x, count=count: x if Counts(count) else x + 1, error, X)
    raises(lambda x: x + len(Counts(x.sum())), TypeError, X)
    check(lambda x: x + len(Counts(True)), X)
    check(lambda x: x + len(Counts((x > 1).sum())), X, breaks=1)


def test_error_for_bad_iteration_or_call_names_the_object_as_in_eager():
    raises(lambda x: list(iter(Says(x + 1))), TypeError, X)
    raises(lambda x: [v for v in Says(3)], TypeError, X)
    raises(lambda x: (x + 1)(2), TypeError, X)


def test_truth_as_a_number():
    def fn(x):
        number = int(torch.zeros(0).sum() > 1)
        return number, [1, 2][int(x[0, 1] > 0)], int((x > 1).any()) + 1, x + number

    for x in (X, -X):
        run = compiled(fn)
        assert same(run(x), fn(x)) and [type(each) for each in run(x)[:3]] == [int] * 3
