"""`test_staleness` for what classes inherit, register and dispatch: changed between two calls, it is never stale."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.harness import compiled
from tests.capture.test_staleness import World, X, outcome

SCENARIOS: dict[str, Callable[[], World]] = {}


def scenario(make: Callable[[], World]) -> Callable[[], World]:
    SCENARIOS[make.__name__] = make
    return make


@scenario
def bases() -> World:
    class A:
        scale = 2

        def run(self, x):
            return x * self.scale

    class B:
        scale = 3

        def run(self, x):
            return x + self.scale

    class C(A):
        def run(self, x):
            return super().run(x) - 1

    class D(C):
        pass

    class Other(B):
        def run(self, x):
            return super().run(x) * 5

    held = D()

    def fn(x):
        return held.run(x), held.scale, isinstance(held, A), [c.__name__ for c in type(held).__mro__], D.scale

    return (
        fn,
        (X(),),
        [
            lambda: setattr(A, "scale", 7),
            lambda: setattr(C, "scale", 8),
            lambda: setattr(D, "scale", 9),
            lambda: delattr(D, "scale"),
            lambda: delattr(C, "scale"),
            lambda: setattr(C, "__bases__", (B,)),
            lambda: setattr(B, "scale", 11),
            lambda: setattr(B, "run", lambda self, x: x - self.scale),
            lambda: setattr(C, "__bases__", (A,)),
            lambda: setattr(D, "__bases__", (C, B)),
            lambda: setattr(held, "__class__", Other),
            lambda: setattr(held, "run", lambda x: x * 100),
            lambda: delattr(held, "run"),
            lambda: setattr(held, "__class__", D),
            lambda: setattr(D, "run", A.run),
            lambda: setattr(A, "run", lambda self, x: x),
        ],
    )


@scenario
def names() -> World:
    """What `type` keeps of a class, and what a member of an enumeration holds."""

    class A:
        pass

    class B(A):
        pass

    class Kind(enum.Enum):
        ONE = 1
        TWO = 2

        def __init__(self, value):
            self.mass = value * 2

    class Named(str, enum.Enum):  # noqa: UP042
        FIRST = "first"

        def __str__(self):
            return self.value

    held = B()

    def fn(x):
        texts = type(held).__name__, held.__class__.__qualname__, B.__module__, f"{type(held)}", repr(A)
        members = Kind.ONE.value, Kind.TWO.name, Kind.ONE.mass, repr(Kind.TWO), str(Kind.ONE), str(Named.FIRST)
        return x * Kind.ONE.value, texts, members, len(B.__mro__), len(B.__bases__)

    return (
        fn,
        (X(),),
        [
            lambda: setattr(B, "__name__", "Bee"),
            lambda: setattr(B, "__qualname__", "a.Bee"),
            lambda: setattr(B, "__module__", "elsewhere"),
            lambda: setattr(A, "__qualname__", "Ay"),
            lambda: setattr(Kind.ONE, "_value_", 5),
            lambda: setattr(Kind.TWO, "_name_", "SECOND"),
            lambda: setattr(Kind.TWO, "_value_", 7),
            lambda: setattr(Kind.ONE, "mass", 9),
            lambda: setattr(Kind, "__name__", "Sort"),
            lambda: setattr(Named.FIRST, "_value_", "second"),
            lambda: setattr(B, "__bases__", (A, list)),
            lambda: setattr(B, "__bases__", (A,)),
        ],
    )


@scenario
def metaclasses() -> World:
    class Meta(type):
        rate = 2

        @property
        def twice(cls):
            return cls.rate * 2

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.n += cls.rate
            return made

        def __getitem__(cls, key):
            return key * cls.rate

        def __len__(cls):
            return cls.rate

    class Base(metaclass=Meta):
        def __init__(self, n):
            self.n = n

    class Sub(Base):
        pass

    def fn(x):
        return x * Sub(3).n, Sub.twice, Sub.rate, Sub[4], len(Sub), type(Sub).__name__, bool(Sub)

    return (
        fn,
        (X(),),
        [
            lambda: setattr(Meta, "rate", 3),
            lambda: setattr(Base, "rate", 4),
            lambda: setattr(Sub, "rate", 5),
            lambda: delattr(Base, "rate"),
            lambda: setattr(Meta, "twice", property(lambda cls: -1)),
            lambda: setattr(Meta, "__getitem__", lambda cls, key: key),
            lambda: setattr(Meta, "__bool__", lambda cls: False),
            lambda: setattr(Sub, "__init__", lambda self, n: setattr(self, "n", n * 10)),
            lambda: setattr(Meta, "__call__", lambda cls, *args: types.SimpleNamespace(n=1)),
            lambda: delattr(Meta, "__call__"),
            lambda: delattr(Sub, "rate"),
        ],
    )


@scenario
def registries() -> World:
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    @functools.singledispatch
    def area(shape):
        return 1

    table: dict[str, Any] = {"a": lambda x: x + 1, "b": torch.sin}
    held = Square()

    def fn(x):
        return (
            isinstance(held, Shape),
            table["a"](x),
            [table[k](x) for k in table],
            len(table),
            area.dispatch(Square)(held),
        )

    return (
        fn,
        (X(),),
        [
            lambda: table.update(a=lambda x: x - 1),
            lambda: table.update(c=torch.cos),
            lambda: table.pop("b"),
            lambda: table.update(b=table.pop("a"), a=torch.neg),
            lambda: setattr(table["a"], "__code__", (lambda x: x * 9).__code__),
            lambda: Shape.register(Square),
            lambda: area.register(Square, lambda shape: 2),
            lambda: table.clear(),
            lambda: table.update(a=torch.abs),
        ],
    )


@scenario
def enums_and_tuples() -> World:
    class Kind(enum.IntEnum):
        ONE = 1
        TWO = 2

    class Flag(enum.Flag):
        A = 1
        B = 2

    Point = collections.namedtuple("Point", "x y")
    state = types.SimpleNamespace(kind=Kind.ONE, flag=Flag.A, point=Point(1, 2.0))

    def fn(x):
        chosen = state.kind is Kind.TWO, Flag.B in state.flag, state.kind + 1, state.point.y > 2
        return x * state.kind.value + state.point.x, chosen, state.point._replace(x=5), state.kind.name

    return (
        fn,
        (X(),),
        [
            lambda: setattr(state, "kind", Kind.TWO),
            lambda: setattr(state, "flag", Flag.A | Flag.B),
            lambda: setattr(state, "point", Point(3, 2.5)),
            lambda: setattr(state, "kind", 2),
            lambda: setattr(state, "kind", Kind.ONE),
            lambda: setattr(Kind, "doubled", property(lambda self: self * 2)),
            lambda: setattr(state, "point", (3, 2.5)),
            lambda: setattr(state, "point", Point(3, 2.5)),
            lambda: setattr(Point, "y", property(lambda self: 0)),
        ],
    )


@scenario
def nested_modules() -> World:
    class Inner(nn.Module):
        gain = 1.0

        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.drop = nn.Dropout(0.5)
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x):
            return self.drop(self.lin(x)) * self.gain + self.shift

    net = nn.Sequential(Inner(), nn.ModuleDict({"a": Inner()})["a"], nn.BatchNorm1d(3))
    for p in net.parameters():
        nn.init.constant_(p, 0.25)

    def fn(x):
        return net(x), net[0].training, sum(p.requires_grad for p in net.parameters()), len(list(net.buffers()))

    first, second = net[0], net[1]

    def shared():
        second.lin.weight = first.lin.weight

    return (
        fn,
        (X(),),
        [
            lambda: net.eval(),
            lambda: first.drop.train(),
            lambda: first.drop.eval(),
            lambda: setattr(first.lin, "weight", nn.Parameter(torch.full((3, 3), 2.0))),
            lambda: first.lin.weight.requires_grad_(False),
            lambda: setattr(first.lin, "bias", None),
            shared,
            lambda: first.lin.weight.data.mul_(3),
            lambda: setattr(first, "shift", torch.ones(3, dtype=torch.float64)),
            lambda: first.register_buffer("shift", torch.ones(1)),
            lambda: setattr(first, "shift", torch.ones(3, 1)[:, 0].expand(3)),
            lambda: setattr(Inner, "gain", 2.0),
            lambda: setattr(second, "gain", 5.0),
            lambda: second.register_forward_hook(lambda m, a, out: out * 2),
            lambda: second.lin.register_forward_pre_hook(lambda m, a: (a[0] - 1,)),
            lambda: setattr(net[2], "momentum", 0.9),
            lambda: setattr(net[2], "track_running_stats", False),
            lambda: net.append(nn.Tanh()),
            lambda: net.insert(0, nn.ReLU()),
            lambda: net.__delitem__(0),
            lambda: setattr(first.drop, "p", 0.0),
            lambda: setattr(first.lin, "forward", lambda x: x * 7),
            lambda: setattr(Inner, "forward", lambda self, x: x - self.gain),
            lambda: net.double(),
            lambda: net.float(),
            lambda: setattr(first, "extra", nn.Linear(1, 1)),
        ],
    )


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("order", ["given", "backwards", 1, 2])
def test_never_stale(name: str, order: Any) -> None:
    fn, args, changes = SCENARIOS[name]()
    if order == "backwards":
        changes.reverse()
    elif order != "given":
        changes = random.Random(order).choices(changes, k=2 * len(changes))
    run = compiled(fn, recompile_limit=1000)
    eager = outcome(fn, args)
    assert outcome(run, args) == eager
    for number, change in enumerate(changes):
        try:
            change()
        except Exception:
            continue  # in another order it may not be possible
        for _ in range(2):
            want = outcome(fn, args)
            assert outcome(run, args) == want, f"after change {number}"


def test_super_of_a_class_whose_bases_change() -> None:
    class A:
        def run(self, x):
            return x * 2

    class B:
        def run(self, x):
            return x + 100

    class C(A):
        def run(self, x):
            return super().run(x) - 1

    run = compiled(lambda held, x: held.run(x))
    held = C()
    assert torch.equal(run(held, X()), X() * 2 - 1)
    C.__bases__ = (B,)
    assert torch.equal(run(held, X()), X() + 99)


def test_issubclass_of_a_class_that_is_registered() -> None:
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    run = compiled(lambda x: x + issubclass(Square, Shape))
    assert torch.equal(run(X()), X())
    Shape.register(Square)
    assert torch.equal(run(X()), X() + 1)


class _Held:
    label, scale, items = "a", torch.ones(2), [1]


def _names(x):
    return x + 1, [name for name in vars(_Held) if not name.startswith("_")]


def _item(x):
    return x * vars(_Held)["scale"] + _Held.__dict__["items"][0], vars(_Held).get("label")


def _written(x):
    before = vars(_Held)
    _Held.label, _Held.more = "b", x + 1
    del _Held.items
    return before["label"], "items" in before, vars(_Held)["more"], before is vars(_Held), before


@pytest.mark.parametrize("fn", [_names, _item, _written])
def test_class_dict_shows_current_attributes(fn):
    """Read by way of its `__dict__`: what was written before and since, by the program and by others."""
    run, found = compiled(fn), []
    for each in (fn, run):
        results = []
        for number in range(3):
            _Held.label, _Held.scale, _Held.items = "a" * number, torch.full((2,), 1.0 + number), [number]
            if number == 1:
                _Held.other = 3
            results.append(each(torch.ones(2)))
            for name in ("other", "more"):
                if hasattr(_Held, name):
                    delattr(_Held, name)
        found.append(results)
    assert str(found[0]) == str(found[1])
