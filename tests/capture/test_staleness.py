"""Whatever a program may read is changed between two calls: the compiled result is never the old one.

Each scenario gives a function, its arguments and changes of the world; after every change, in several orders, compiled
and eager must agree in values, classes, dtypes, gradients, strides and errors.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import functools
import inspect
import os
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from tests.capture.harness import compiled

World = tuple[Callable[..., Any], tuple[Any, ...], list[Callable[[], Any]]]
SCENARIOS: dict[str, Callable[[], World]] = {}


def scenario(make: Callable[[], World]) -> Callable[[], World]:
    SCENARIOS[make.__name__] = make
    return make


def X() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


def seen(value: Any) -> Any:
    """All that a caller can see of a result, as something that compares."""
    if isinstance(value, torch.Tensor):
        grad = value.grad_fn is not None if not value.is_leaf else None
        data = value.detach().to(torch.complex128 if value.is_complex() else torch.float64).flatten().tolist()
        return (
            type(value),
            str(value.dtype),
            str(value.device),
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            grad,
            value.is_inference(),
            repr(data),
        )
    if isinstance(value, dict):
        return type(value), [(k, seen(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [seen(v) for v in value]
    return type(value), repr(value)


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    torch.manual_seed(0)
    try:
        return seen(fn(*args))
    except Exception as error:
        return type(error), str(error)


# -- tensors -----------------------------------------------------------------------------------------------------------


@scenario
def settings() -> World:
    """What standard libraries keep for the process or the thread."""
    shared = torch.ones(2)

    def described(a: int, b: int = 2) -> int:
        return a

    def fn(x):
        third = float(decimal.Decimal(1) / decimal.Decimal(3))
        names = list(inspect.signature(described).parameters)
        return x * third, numpy.geterr()["divide"], names, shared.is_shared(), os.environ.get("SMELT_TEST_SETTING")

    return (
        fn,
        (X(),),
        [
            lambda: setattr(decimal.getcontext(), "prec", 3),
            lambda: setattr(decimal.getcontext(), "prec", 28),
            lambda: numpy.seterr(divide="ignore"),
            lambda: numpy.seterr(divide="warn"),
            lambda: setattr(described, "__signature__", inspect.signature(lambda: 0)),
            lambda: described.__dict__.pop("__signature__", None),
            lambda: setattr(described, "__wrapped__", lambda one: one),
            lambda: shared.share_memory_(),
            lambda: os.environ.__setitem__("SMELT_TEST_SETTING", "1"),
            lambda: os.environ.pop("SMELT_TEST_SETTING", None),
        ],
    )


@scenario
def metadata_of_a_global_tensor() -> World:
    held = types.SimpleNamespace(t=X())

    def fn(x):
        return x + held.t.sum() * held.t.dim(), held.t * 2, held.t.requires_grad, held.t.dtype, held.t.is_contiguous()

    def put(make):
        return lambda: setattr(held, "t", make())

    changes = [
        put(X),
        put(lambda: X().double()),
        put(lambda: X().requires_grad_()),
        put(lambda: X()[:1]),
        put(lambda: X().t()),
        put(lambda: X()[0]),
        put(lambda: nn.Parameter(X())),
        put(lambda: X().to(torch.int64)),
        put(lambda: torch.tensor(3.0)),
        put(lambda: X().expand(2, 2, 3)),
        put(lambda: X().to(torch.complex64).conj()),
        put(lambda: X().bfloat16()),
    ]
    return fn, (X(),), changes


@scenario
def tensor_changed_in_place() -> World:
    t = X()

    def fn(x):
        return x * t.sum(), t.shape, t.stride(), t.requires_grad, t.storage_offset(), t + 1

    big = torch.arange(40.0)

    def data(make):
        def change():
            t.data = make()

        return change

    return (
        fn,
        (X(),),
        [
            lambda: t.add_(1) if not t.requires_grad else None,
            data(lambda: big[:6].view(2, 3)),
            data(lambda: big[6:12].view(2, 3)),
            data(lambda: big[:12].view(3, 4)),
            data(lambda: X().t()),
            lambda: t.requires_grad_(True),
            lambda: t.requires_grad_(False),
            data(lambda: X().double().float()),
            data(lambda: big.as_strided((2, 3), (1, 2), 5)),
        ],
    )


@scenario
def attributes_of_a_tensor() -> World:
    t = X()
    t.tag = 1

    def fn(x):
        return x * t.tag, getattr(t, "other", None), t.grad is None, t.is_leaf, hasattr(t, "late")

    return (
        fn,
        (X(),),
        [
            lambda: setattr(t, "tag", 2),
            lambda: setattr(t, "other", 3),
            lambda: setattr(t, "grad", X()),
            lambda: setattr(t, "grad", None),
            lambda: setattr(t, "late", 1),
            lambda: setattr(t, "tag", 1),
        ],
    )


@scenario
def aliasing_of_arguments() -> World:
    state = types.SimpleNamespace(a=X(), b=X())

    def fn(x):
        same = state.a is state.b
        c = state.a * 2
        return x + c + state.b, same, state.a is x

    one = X()
    x = X()
    return (
        fn,
        (x,),
        [
            lambda: vars(state).update(a=one, b=one),
            lambda: vars(state).update(a=one, b=X()),
            lambda: vars(state).update(a=x),
            lambda: vars(state).update(a=X(), b=X()),
        ],
    )


@scenario
def none_tensor_number() -> World:
    state = types.SimpleNamespace(v=None)

    def fn(x):
        if state.v is None:
            return x + 1
        return x * state.v

    values = [None, X(), 2, 2.0, True, None, torch.tensor(2), 2 + 1j, float("nan"), -0.0, 0.0, 0]
    return fn, (X(),), [functools.partial(setattr, state, "v", v) for v in values]


# -- modules -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    factor = 1.0

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU()
        self.register_buffer("shift", torch.ones(width))
        self.extra: Any = None
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> Any:
        y = self.drop(self.act(self.lin(x))) * self.scale * self.factor + self.shift
        if self.extra is not None:
            y = self.extra(y)
        if hasattr(self, "late"):
            y = y + self.late
        if getattr(self, "bonus", None) is not None:
            y = y * 3
        return y, self.training


@scenario
def parts_of_a_module() -> World:
    torch.manual_seed(1)
    net = Block()

    def weights():
        torch.manual_seed(2)
        return nn.Linear(3, 3)

    def twice(lin):
        lin.weight.data = lin.weight.data * 2

    return (
        net,
        (X(),),
        [
            lambda: net.eval(),
            lambda: net.train(),
            lambda: net.drop.eval(),
            lambda: setattr(net.drop, "p", 0.0),
            lambda: net.eval(),
            lambda: setattr(net, "lin", weights()),
            lambda: setattr(net.lin, "weight", nn.Parameter(torch.ones(3, 3))),
            lambda: setattr(net.lin, "bias", None),
            lambda: twice(net.lin),
            lambda: net.lin.weight.requires_grad_(False),
            lambda: setattr(net, "shift", torch.zeros(3)),
            lambda: net.register_buffer("late", torch.ones(3)),
            lambda: delattr(net, "late"),
            lambda: net.register_parameter("late", nn.Parameter(torch.ones(3) * 2)),
            lambda: delattr(net, "late"),
            lambda: setattr(net, "late", 5),
            lambda: delattr(net, "late"),
            lambda: net.add_module("bonus", nn.ReLU()),
            lambda: delattr(net, "bonus"),
            lambda: setattr(net, "extra", lambda y: y - 1),
            lambda: setattr(net, "extra", nn.Tanh()),
            lambda: setattr(net, "extra", None),
            lambda: setattr(net, "scale", 3.0),
            lambda: setattr(net, "scale", 3),
            lambda: setattr(net, "factor", 7.0),
            lambda: delattr(net, "factor"),
            lambda: setattr(net, "act", nn.Sigmoid()),
            lambda: setattr(net.lin, "forward", lambda x: x + 1),
            lambda: delattr(net.lin, "forward"),
            lambda: setattr(net.act, "__class__", nn.Tanh),
            lambda: net.double(),
            lambda: net.float(),
        ],
    )


@scenario
def hooks_of_a_module() -> World:
    net = Block().eval()
    handles: list[Any] = []

    def drop():
        while handles:
            handles.pop().remove()

    glob = nn.modules.module
    return (
        net,
        (X(),),
        [
            lambda: handles.append(net.lin.register_forward_hook(lambda m, a, o: o * 10)),
            lambda: handles.append(net.lin.register_forward_pre_hook(lambda m, a: (a[0] + 1,))),
            lambda: handles.append(net.register_forward_hook(lambda m, a, o: (o[0] - 1, o[1]))),
            drop,
            lambda: handles.append(net.act.register_forward_hook(lambda m, a, o: o + 3)),
            lambda: net.act._forward_hooks.clear(),
            lambda: handles.append(net.lin.register_full_backward_hook(lambda m, a, o: None)),
            drop,
            lambda: handles.append(glob.register_module_forward_hook(lambda m, a, o: o)),
            drop,
            lambda: handles.append(glob.register_module_forward_pre_hook(lambda m, a: None)),
            drop,
            lambda: handles.append(net.lin.register_forward_hook(lambda m, a, k, o: o + 1, with_kwargs=True)),
            drop,
        ],
    )


@scenario
def lists_of_modules() -> World:
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
            self.named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Sigmoid()})
            self.seq = nn.Sequential(nn.ReLU(), nn.Tanh())
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3) * 2)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) + 1
            for name, layer in self.named.items():
                x = layer(x) * len(name)
            for w in self.weights:
                x = x * w
            return self.seq(x), len(self.layers), list(self.named)

    net = Stack()
    return (
        net,
        (X(),),
        [
            lambda: net.layers.append(nn.Sigmoid()),
            lambda: net.layers.insert(0, nn.Tanh()),
            lambda: net.layers.pop(0),
            lambda: net.named.update({"cc": nn.Tanh()}),
            lambda: net.named.pop("a"),
            lambda: net.named.update({"a": nn.ReLU()}),
            lambda: net.seq.append(nn.ReLU()),
            lambda: net.seq.__setitem__(0, nn.Sigmoid()),
            lambda: net.weights.append(nn.Parameter(torch.ones(3) * 5)),
            lambda: net.weights.__setitem__(0, nn.Parameter(torch.zeros(3))),
            lambda: net.layers.__setitem__(0, nn.Identity()),
        ],
    )


# -- classes and objects -----------------------------------------------------------------------------------------------


@scenario
def instance_against_class() -> World:
    class Base:
        k = 1

        def act(self, x):
            return x + 1

    class Thing(Base):
        def __init__(self):
            self.own = 2

    thing = Thing()

    def fn(x):
        return thing.act(x) * thing.k * thing.own, hasattr(thing, "z"), getattr(thing, "w", 0)

    def prop(value):
        return property(lambda self: value, lambda self, v: None)

    return (
        fn,
        (X(),),
        [
            lambda: setattr(Base, "k", 2),
            lambda: setattr(Thing, "k", 3),
            lambda: setattr(thing, "k", 4),
            lambda: setattr(thing, "own", 5),
            lambda: setattr(Base, "act", lambda self, x: x + 2),
            lambda: setattr(Thing, "act", lambda self, x: x + 3),
            lambda: setattr(thing, "act", lambda x: x + 4),
            lambda: delattr(thing, "act"),
            lambda: delattr(Thing, "act"),
            lambda: delattr(thing, "k"),
            lambda: setattr(Thing, "own", prop(9)),
            lambda: delattr(Thing, "own"),
            lambda: setattr(Thing, "k", prop(8)),
            lambda: setattr(Thing, "z", 1),
            lambda: delattr(Thing, "z"),
            lambda: setattr(thing, "z", 1),
            lambda: setattr(thing, "w", 3),
            lambda: delattr(thing, "w"),
            lambda: setattr(Base, "w", 6),
            lambda: setattr(Thing, "__getattr__", lambda self, n: 40),
            lambda: delattr(Base, "w"),
            lambda: delattr(Thing, "__getattr__"),
            lambda: setattr(
                Thing, "__getattribute__", lambda self, n: 7 if n == "own" else object.__getattribute__(self, n)
            ),
            lambda: delattr(Thing, "__getattribute__"),
        ],
    )


@scenario
def class_attributes() -> World:
    class Meta(type):
        level = 1

    class Config(metaclass=Meta):
        size = 2
        table = {"a": 1}
        items = [1, 2]

    def fn(x):
        return x * Config.size * Config.level * Config.table["a"] + sum(Config.items), hasattr(Config, "late")

    return (
        fn,
        (X(),),
        [
            lambda: setattr(Config, "size", 3),
            lambda: setattr(Meta, "level", 4),
            lambda: Config.table.update(a=5),
            lambda: Config.items.append(6),
            lambda: setattr(Config, "table", {"a": 7}),
            lambda: setattr(Config, "late", 1),
            lambda: setattr(Config, "level", 9),
            lambda: delattr(Config, "late"),
            lambda: setattr(Config, "items", (1,)),
        ],
    )


@scenario
def dunder_methods() -> World:
    class Box:
        def __init__(self):
            self.v = [1, 2, 3]

        def __len__(self):
            return len(self.v)

        def __getitem__(self, i):
            return self.v[i]

        def __call__(self, x):
            return x + 1

    box = Box()

    def fn(x):
        return box(x) * len(box) + box[0], bool(box), 2 in box, [i for i in box], box == box, str(type(box).__name__)

    return (
        fn,
        (X(),),
        [
            lambda: box.v.append(4),
            lambda: setattr(Box, "__len__", lambda s: 7),
            lambda: setattr(Box, "__bool__", lambda s: False),
            lambda: setattr(Box, "__getitem__", lambda s, i: [5, 6][i]),
            lambda: setattr(Box, "__call__", lambda s, x: x - 1),
            lambda: setattr(Box, "__contains__", lambda s, i: False),
            lambda: setattr(Box, "__iter__", lambda s: iter([9])),
            lambda: setattr(Box, "__eq__", lambda s, o: False),
            lambda: delattr(Box, "__contains__"),
            lambda: delattr(Box, "__iter__"),
        ],
    )


@scenario
def slots_and_descriptors() -> World:
    class Field:
        def __init__(self, value):
            self.value = value

        def __get__(self, obj, owner=None):
            return self.value

    class Thing:
        __slots__ = ("a", "b")
        f = Field(3)

    thing = Thing()
    thing.a = 1

    def fn(x):
        return x * thing.a + thing.f, hasattr(thing, "b")

    return (
        fn,
        (X(),),
        [
            lambda: setattr(thing, "a", 2),
            lambda: setattr(thing, "b", 3),
            lambda: delattr(thing, "b"),
            lambda: setattr(Thing.__dict__["f"], "value", 5),
            lambda: setattr(Thing, "f", Field(6)),
            lambda: setattr(Field, "__get__", lambda self, obj, owner=None: 11),
            lambda: setattr(thing, "a", 2.0),
        ],
    )


@scenario
def members_of_c_classes() -> World:
    error, told = OSError(), KeyError("k")

    def fn(x):
        return x + (error.errno or 0), error.filename, told.__suppress_context__, told.args, type(told).__basicsize__

    return (
        fn,
        (X(),),
        [
            lambda: setattr(error, "errno", 3),
            lambda: setattr(error, "errno", None),
            lambda: setattr(error, "filename", "a"),
            lambda: setattr(told, "__suppress_context__", True),
            lambda: setattr(told, "args", ("l",)),
        ],
    )


@scenario
def dataclasses_and_enums() -> World:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    class Level(enum.IntEnum):
        LOW = 2
        HIGH = 3

    class Number(int): ...

    @dataclasses.dataclass
    class Options:
        color: Color = Color.RED
        level: Any = Level.LOW
        name: str = "a"
        point: Any = (1, 2)

    options = Options()

    def fn(x):
        y = x * options.level if options.color is Color.RED else x - options.level
        return y + len(options.name) + options.point[1], type(options.level).__name__, options.color.name

    Point = collections.namedtuple("Point", "x y")
    return (
        fn,
        (X(),),
        [
            lambda: setattr(options, "color", Color.BLUE),
            lambda: setattr(options, "level", Level.HIGH),
            lambda: setattr(options, "level", 3),
            lambda: setattr(options, "level", Number(3)),
            lambda: setattr(options, "level", Number(4)),
            lambda: setattr(options, "level", True),
            lambda: setattr(options, "name", "bcd"),
            lambda: setattr(options, "point", Point(1, 3)),
            lambda: setattr(options, "point", [1, 4]),
            lambda: setattr(options, "point", Point(1, 4)),
            lambda: setattr(options, "level", 1.0),
        ],
    )


# -- functions ---------------------------------------------------------------------------------------------------------

FACTOR = 2


@scenario
def globals_and_builtins() -> World:
    module = types.ModuleType("a_module_of_the_test")
    source = "def fn(x):\n    return x * FACTOR + len((1, 2)), helper(x), held.k\n"
    exec(source, module.__dict__)
    space: Any = module
    space.FACTOR, space.helper, space.held = 2, (lambda x: x + 1), types.SimpleNamespace(k=1)
    return (
        module.fn,
        (X(),),
        [
            lambda: setattr(module, "FACTOR", 3),
            lambda: setattr(module, "helper", lambda x: x + 2),
            lambda: setattr(module, "len", lambda v: 10),
            lambda: delattr(module, "len"),
            lambda: setattr(space.held, "k", 2),
            lambda: setattr(module, "held", types.SimpleNamespace(k=3)),
            lambda: setattr(module, "FACTOR", 3.0),
            lambda: setattr(module, "FACTOR", X()),
            lambda: setattr(module, "FACTOR", 2),
        ],
    )


@scenario
def cells_defaults_and_code() -> World:
    k: Any = 1
    table = {"a": 1}

    def helper(x, by=2, *, plus=3):
        return x * by + plus + k

    def other(x, by=2, *, plus=3):
        return x - by - plus - k

    def fn(x):
        return helper(x) + table["a"], k

    def write(value):
        nonlocal k
        k = value

    return (
        fn,
        (X(),),
        [
            lambda: write(2),
            lambda: setattr(helper, "__defaults__", (5,)),
            lambda: setattr(helper, "__kwdefaults__", {"plus": 7}),
            lambda: table.update(a=9),
            lambda: setattr(helper, "__code__", other.__code__),
            lambda: write(2.0),
            lambda: helper.__kwdefaults__.update(plus=8),
            lambda: setattr(helper, "__defaults__", None),
            lambda: write(X()),
            lambda: setattr(helper, "__defaults__", (2,)),
            lambda: setattr(helper, "tag", 3),
        ],
    )


@scenario
def attributes_of_functions() -> World:
    def helper(x):
        return x * helper.factor

    helper.factor = 2
    part = functools.partial(lambda x, y, z=1: x * y + z, y=3)
    state = types.SimpleNamespace(part=part, bound=X().sum, method=None)

    class Thing:
        k = 2

        def act(self, x):
            return x * self.k

    things = [Thing(), Thing()]
    things[1].k = 5
    state.method = things[0].act

    def fn(x):
        return helper(x) + state.part(x) + state.method(x), hasattr(helper, "late")

    return (
        fn,
        (X(),),
        [
            lambda: setattr(helper, "factor", 3),
            lambda: setattr(helper, "late", 1),
            lambda: part.keywords.update(y=4),
            lambda: setattr(state, "part", functools.partial(part, z=9)),
            lambda: setattr(state, "method", things[1].act),
            lambda: setattr(things[1], "k", 6),
            lambda: setattr(Thing, "act", lambda self, x: x),
            lambda: setattr(state, "method", things[0].act),
        ],
    )


@scenario
def wrapped_functions() -> World:
    counter = types.SimpleNamespace(k=1)

    def deco(f):
        @functools.wraps(f)
        def inner(*a, **k):
            return f(*a, **k) * counter.k

        return inner

    @deco
    def helper(x):
        return x + 1

    def fn(x):
        return helper(x), helper.__name__

    return (
        fn,
        (X(),),
        [
            lambda: setattr(counter, "k", 2),
            lambda: setattr(helper, "__name__", "other"),
            lambda: setattr(helper.__wrapped__, "__code__", (lambda x: x + 5).__code__),
        ],
    )


@scenario
def arguments_of_many_kinds() -> World:
    box: list[Any] = [1]

    def fn(x):
        v = box[0]
        if isinstance(v, str):
            return x + len(v), v
        if isinstance(v, torch.dtype):
            return x.to(v), v
        if callable(v):
            return v(x), None
        if isinstance(v, (list, tuple)):
            return x * len(v), v
        return x * v, v

    class Number(float): ...

    values: list[Any] = [
        1,
        "ab",
        "cd",
        torch.float64,
        torch.float32,
        torch.sin,
        torch.cos,
        lambda x: x + 1,
        lambda x: x + 2,
        [1, 2],
        (1, 2),
        [1],
        2.0,
        2,
        True,
        10**20,
        Number(2.0),
        torch.Size([1, 2]),
        (1, 2),
        (1.0, 2),
        (True, 2),
        (2, 1),
    ]
    return fn, (X(),), [functools.partial(box.__setitem__, 0, v) for v in values]


# -- containers --------------------------------------------------------------------------------------------------------


@scenario
def contents_of_containers() -> World:
    held = {
        "list": [1, 2],
        "dict": {"a": 1, "b": 2},
        "set": {1, 2},
        "deque": collections.deque([1, 2], maxlen=5),
        "tuple": (1, [2]),
        "ordered": collections.OrderedDict(a=1, b=2),
        "default": collections.defaultdict(int, a=1),
        "frozen": frozenset({1}),
        "counter": collections.Counter("ab"),
        "chain": {"x": {"y": [1]}},
    }

    def fn(x):
        d = held["dict"]
        total = sum(held["list"]) + sum(d.values()) + sum(held["set"]) + sum(held["deque"]) + held["tuple"][1][0]
        total = total * 2 + len(held["frozen"]) + held["chain"]["x"]["y"][0] + held["counter"]["a"]
        keys = [*d, *held["ordered"], *held["default"]]
        return (
            x * total,
            keys,
            1 in held["set"],
            3 in held["list"],
            "z" in d,
            d.get("q", 5),
            list(held["deque"]),
            held["deque"].maxlen,
            held["list"] == [1, 2],
            next(iter(held["ordered"])),
            held["default"].get("zz"),
        )

    def reorder():
        held["dict"]["a"] = held["dict"].pop("a", 1)

    return (
        fn,
        (X(),),
        [
            lambda: held["list"].append(3),
            lambda: held["list"].__setitem__(0, 1.0),
            lambda: held["list"].reverse(),
            lambda: held["dict"].update(a=4),
            lambda: held["dict"].update(z=4),
            reorder,
            lambda: held["dict"].pop("z"),
            lambda: held["set"].add(5),
            lambda: held["set"].discard(1),
            lambda: held["set"].add(1.0),
            lambda: held["deque"].append(7),
            lambda: held["deque"].rotate(1),
            lambda: held["tuple"][1].__setitem__(0, 3),
            lambda: held["ordered"].move_to_end("a"),
            lambda: held["ordered"].update(c=1),
            lambda: held["default"].update(zz=4),
            lambda: held.update(frozen=frozenset({1, 2})),
            lambda: held["chain"]["x"].update(y=[8]),
            lambda: held["counter"].update("a"),
            lambda: held.update(deque=collections.deque([1])),
            lambda: held.update(list=(1, 2)),
            lambda: held["dict"].update(q=1),
            lambda: held.update(set={True, 5}),
            lambda: held.update(dict=collections.OrderedDict(a=1)),
        ],
    )


@scenario
def dictionaries_with_odd_keys() -> World:
    class Key:
        def __init__(self, v):
            self.v = v

        def __hash__(self):
            return hash(self.v)

        def __eq__(self, other):
            return isinstance(other, Key) and self.v == other.v

    keys = [Key(1), Key(2)]
    held = {keys[0]: 1, 3: 2, None: 4, (1, 2): 5, torch.float32: 6, int: 7}

    def fn(x):
        return (
            x * held[keys[0]] + held[3] + held[None] + held[1, 2] + held[torch.float32] + held[int],
            keys[1] in held,
            1.0 in held,
        )

    return (
        fn,
        (X(),),
        [
            lambda: held.update({keys[0]: 2}),
            lambda: held.update({keys[1]: 2}),
            lambda: held.update({3: 9}),
            lambda: held.update({None: 9}),
            lambda: held.update({int: 9}),
            lambda: held.update({1: 9}),
            lambda: held.pop(1),
            lambda: keys.reverse(),
        ],
    )


@scenario
def iterators_and_weak_references() -> World:
    class Owner: ...

    owners = [Owner(), Owner()]
    owners[0].k, owners[1].k = 1, 2
    state = types.SimpleNamespace(ref=weakref.ref(owners[0]), proxy=None)

    def fn(x):
        target = state.ref()
        return x * (target.k if target is not None else 10)

    return (
        fn,
        (X(),),
        [
            lambda: setattr(owners[0], "k", 3),
            lambda: setattr(state, "ref", weakref.ref(owners[1])),
            lambda: owners.pop(),
            lambda: setattr(state, "ref", weakref.ref(owners[0])),
            lambda: owners.pop(),
        ],
    )


# -- modes -------------------------------------------------------------------------------------------------------------


@scenario
def flags_of_torch() -> World:
    w = torch.ones(3, 3, requires_grad=True)

    def fn(x):
        y = x @ w
        return (
            y,
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.ones(2),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cuda.matmul.allow_tf32,
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_default_device(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.autograd.is_multithreading_enabled()
            if hasattr(torch.autograd, "is_multithreading_enabled")
            else None,
        )

    def flip(owner, name):
        return lambda: setattr(owner, name, not getattr(owner, name))

    threads = torch.get_num_threads()
    return (
        fn,
        (X(),),
        [
            lambda: torch.set_grad_enabled(False),
            lambda: torch.set_grad_enabled(True),
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            lambda: torch.use_deterministic_algorithms(False),
            lambda: torch.set_num_threads(threads + 1),
            lambda: torch.set_num_threads(threads),
            lambda: torch.set_float32_matmul_precision("high"),
            lambda: torch.set_float32_matmul_precision("highest"),
            flip(torch.backends.mkldnn, "enabled"),
            flip(torch.backends.mkldnn, "enabled"),
            flip(torch.backends.cudnn, "enabled"),
            flip(torch.backends.cudnn, "enabled"),
            flip(torch.backends.cudnn, "benchmark"),
            flip(torch.backends.cudnn, "benchmark"),
            flip(torch.backends.cuda.matmul, "allow_tf32"),
            flip(torch.backends.cuda.matmul, "allow_tf32"),
            lambda: torch.autograd.set_detect_anomaly(True),
            lambda: torch.autograd.set_detect_anomaly(False),
            lambda: torch.backends.cuda.enable_flash_sdp(False),
            lambda: torch.backends.cuda.enable_flash_sdp(True),
            lambda: torch.set_autocast_dtype("cpu", torch.float16),
            lambda: torch.set_autocast_dtype("cpu", torch.bfloat16),
            lambda: torch.set_autocast_enabled("cpu", True),
            lambda: torch.set_autocast_enabled("cpu", False),
        ],
    )


@scenario
def context_managers() -> World:
    stack: list[Any] = []
    w = torch.ones(3, 3, requires_grad=True)

    def fn(x):
        y = x @ w
        return y, y * 2, torch.ones(2) + 1, torch.is_grad_enabled(), torch.get_default_device()

    def enter(make):
        return lambda: stack.append(make()) or stack[-1].__enter__()

    def leave():
        stack.pop().__exit__(None, None, None)

    return (
        fn,
        (X(),),
        [
            enter(torch.no_grad),
            enter(torch.enable_grad),
            leave,
            leave,
            enter(torch.inference_mode),
            leave,
            enter(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
            enter(lambda: torch.autocast("cpu", enabled=False)),
            leave,
            leave,
            enter(lambda: torch.autocast("cpu", dtype=torch.float16)),
            leave,
            enter(lambda: torch.device("meta")),
            leave,
            enter(lambda: torch.device("cpu")),
            leave,
        ],
    )


@pytest.fixture(autouse=True)
def restore():
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        yield


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("order", ["given", "backwards", 1, 2])
def test_never_stale(name: str, order: Any) -> None:
    fn, args, changes = SCENARIOS[name]()
    ordered = name in ("flags_of_torch", "context_managers")
    if order != "given" and ordered:
        return
    if order == "backwards":
        changes.reverse()
    elif order != "given":
        changes = random.Random(order).choices(changes, k=2 * len(changes))
    run = compiled(fn, recompile_limit=1000)
    assert outcome(run, args) == outcome(fn, args)
    for number, change in enumerate(changes):
        try:
            change()
        except Exception:
            continue  # in another order it may not be possible
        for _ in range(2):
            want = outcome(fn, args)
            assert outcome(run, args) == want, f"after change {number}, {getattr(change, '__code__', change)}"
