"""Every construct of Python and torch that ordinary model code uses: captured whole, with eager's results."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import functools
import inspect
import itertools
import logging
import math
import operator
import typing
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.capture.harness import check, compiled, same

X = torch.linspace(-1.0, 2.0, 6).reshape(2, 3)
CASES: dict[str, Callable[..., Any]] = {}


def case(fn: Callable[..., Any]) -> Callable[..., Any]:
    CASES[fn.__name__] = fn
    return fn


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flag(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    width: int = 3
    names: list[str] = dataclasses.field(default_factory=list)
    scale: float = 0.5


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    n: int
    m: int = 2


Pair = collections.namedtuple("Pair", "a b")


class Registry:
    count = 0
    label: typing.ClassVar[str] = "x"


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.tagged = True
        return made


class Tagged(metaclass=Meta):
    def __init__(self, n: int) -> None:
        self.n = n


class Descriptor:
    def __get__(self, obj: Any, cls: Any) -> Any:
        return obj.n * 3

    def __set__(self, obj: Any, value: int) -> None:
        obj.n = value


class Described:
    triple = Descriptor()

    def __init__(self, n: int) -> None:
        self.n = n

    def __getattr__(self, name: str) -> Any:
        if name == "lazy":
            return 7
        raise AttributeError(name)


@functools.lru_cache(maxsize=8)
def cached(n: int) -> int:
    return n * n


@functools.singledispatch
def dispatched(value: Any) -> int:
    return 0


@dispatched.register
def _(value: int) -> int:
    return value + 1


def with_signature(x: Any, scale: float = 2.0, *, shift: int = 1) -> Any:
    return x * scale + shift


LEVEL = 0


@case
def signature(x):
    parameters = inspect.signature(with_signature).parameters
    known = {"scale": 3.0, "other": 1}
    return with_signature(x, **{k: v for k, v in known.items() if k in parameters}), list(parameters)


@case
def lru_cache(x):
    return x * cached(3) + cached(3)


@case
def singledispatch(x):
    return x + dispatched(3) + dispatched("a")


@case
def dataclass(x):
    config = Config(names=["a"])
    other = dataclasses.replace(config, width=5)
    names = [f.name for f in dataclasses.fields(config)]
    return x * config.scale, other, names, config == other, dataclasses.asdict(config), Frozen(1) < Frozen(2)


@case
def enums(x):
    found = Color(1)
    return (
        x * found.value,
        found.name,
        found is Color.RED,
        Color["BLUE"],
        [c.value for c in Color],
        bool(Flag.A | Flag.B),
    )


@case
def match(x):
    out = []
    for subject in (1, (0, 2), {"a": 1, "z": 2}, Frozen(3), "key", [1, 2, 3], Color.RED, None, 2.5):
        match subject:
            case 1:
                out.append("one")
            case (0, n):
                out.append(n)
            case {"a": n, **rest}:
                out.append((n, rest))
            case Frozen(n=n, m=2):
                out.append(n)
            case "a" | "key":
                out.append("text")
            case [first, *rest] if first:
                out.append(rest)
            case Color.RED:
                out.append("red")
            case None:
                out.append("none")
            case float(value):
                out.append(value)
    return x + 1, out


@case
def class_attributes(x):
    before = Registry.count
    Registry.count = 5
    Registry.label = "y"
    out = x + Registry.count, Registry.label, Registry().count
    Registry.count, Registry.label = before, "x"
    return out


@case
def global_writes(x):
    global LEVEL
    LEVEL += 1
    y = x + LEVEL
    LEVEL -= 1
    return y


@case
def strings(x):
    name = "layer.3.weight"
    parts = name.split(".")
    text = f"{parts[0]:>8}|{int(parts[1]):03d}|{'-'.join(reversed(parts))}|{name!r}"
    more = name.replace("layer", "block").partition("."), name.startswith(("layer", "x")), name.removesuffix("weight")
    return x * int(parts[1]), text, more, f"{1.5:.2f} {2}", "%s-%d" % ("a", 3), name.title(), "a" * 3  # noqa: UP031


@case
def numpy_scalars(x):
    scale = np.float32(0.5)
    sizes = np.array([2, 3])
    return x * float(scale) + int(sizes.prod()), int(np.int64(3)), float(np.sqrt(4.0)), sizes.tolist()


@case
def abstract_types(x):
    values = [[1], (2,), {"a": 1}, {1}, "a", 3, iter([])]
    kinds = (collections.abc.Sequence, collections.abc.Mapping, collections.abc.Iterable, collections.abc.Hashable)
    return x + 1, [[isinstance(v, kind) for kind in kinds] for v in values]


@case
def typing_calls(x):
    value = typing.cast(int, 3)
    hints = typing.get_type_hints(Config)
    return x + value, typing.get_origin(list[int]) is list, typing.get_args(dict[str, int]), sorted(hints)


@case
def logging_and_warnings(x):
    logger = logging.getLogger("constructs")
    logger.info("shape %s", tuple(x.shape))
    if logger.isEnabledFor(logging.DEBUG):
        x = x + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
    return x * 2


@case
def functional_tools(x):
    total = functools.reduce(operator.add, [x, x * 2, x * 3])
    twice = functools.partial(torch.mul, other=2)
    pairs = (
        list(itertools.product([1, 2], [3])),
        list(itertools.zip_longest([1, 2], [3])),
        list(itertools.pairwise("abc")),
    )
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])]
    return twice(total), pairs, groups, list(itertools.islice(itertools.count(3), 2)), operator.itemgetter(1, 0)([5, 6])


@case
def math_functions(x):
    return x * math.sqrt(4) + math.prod((2, 3)), math.ceil(1.2), math.isclose(1.0, 1.0), math.log2(8), math.inf


@case
def containers(x):
    counts = collections.Counter("abca")
    groups: Any = collections.defaultdict(list)
    groups["a"].append(x)
    queue = collections.deque([1, 2, 3], maxlen=2)
    queue.appendleft(0)
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    merged = {"a": 1} | {"b": x}
    return (
        counts.most_common(1),
        groups,
        queue,
        ordered,
        merged,
        {1, 2} ^ {2, 3},
        frozenset((1,)),
        collections.ChainMap({"a": 1})["a"],
    )


@case
def namedtuples(x):
    pair = Pair(x, 2)._replace(b=3)
    a, b = pair
    return pair, a * b, pair._fields, pair._asdict()["b"]


@case
def slices(x):
    window = slice(0, 2)
    return x[window], x[..., ::2], [1, 2, 3][window], window.indices(5), x[:, [0, 2]], x[None, :, -1]


@case
def generators(x):
    def steps(n):
        for i in range(n):
            got = yield x + i
            if got:
                return got
        return n

    def outer():
        done = yield from steps(2)
        yield x * done

    running = steps(3)
    first = next(running)
    try:
        running.send("stop")
    except StopIteration as stop:
        answer = stop.value
    return first, answer, list(outer()), sum(i for i in range(4)), dict((i, i) for i in range(2))


@case
def closures(x):
    total = 0

    def add(n, *more, scale=1, **named):
        nonlocal total
        total += n * scale + len(more) + len(named)
        return lambda t: t + total

    functions = [add(1), add(2, 3, scale=2), add(1, key=3)]
    return [f(x) for f in functions], total


@case
def exceptions(x):
    out = []
    for value in (0, 1, "a", None):
        try:
            try:
                out.append(1 // value)
            except TypeError as error:
                raise ValueError("bad") from error
            else:
                out.append("else")
            finally:
                out.append("finally")
        except ZeroDivisionError:
            out.append("zero")
        except ValueError as error:
            out.append((str(error), type(error.__cause__).__name__))
    return x + len(out), out


@case
def objects(x):
    made, other = Tagged(3), Described(2)
    other.triple = 4
    return x * made.n, made.tagged, other.triple, other.lazy, hasattr(other, "missing"), made


@case
def types_and_sizes(x):
    size = x.shape
    return (
        x.new_zeros(size),
        size.numel(),
        torch.Size([2]) + size,
        x.dtype.is_floating_point,
        torch.device("cpu"),
        x.dtype,
    )


@case
def walrus_and_unpacking(x):
    first, *middle, last = range(5)
    if (n := len(middle)) > 2:
        x = x + n
    return x, first, middle, last, [*middle, *"ab"], {**{"a": 1}, "b": 2}, (m := 3) + m


@case
def functional_call(x):
    return torch.func.functional_call(LINEAR, {"weight": LINEAR.weight * 2, "bias": LINEAR.bias}, (x,))


LINEAR = nn.Linear(3, 2)


@case
def vmap(x):
    return torch.func.vmap(lambda row: row * row.sum())(x)


@case
def grad(x):
    return torch.func.grad(lambda t: (t**3).sum())(x)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((3,), float(i))) for i in range(3)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
        self.layers = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.ReLU()})
        self.held = [nn.Linear(3, 3)]

    def forward(self, x):
        for i, scale in enumerate(self.scales):
            x = x * scale + i
        for name, layer in self.layers.items():
            x = layer(x) if name != "skip" else x
        return self.held[0](x) + self.named["a"], len(self.scales)


def test_lists_of_parameters_and_modules() -> None:
    check(Lists(), X)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.seen: list[str] = []
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.layer.register_forward_hook(self._note)

    def _note(self, module: Any, args: Any, out: Any) -> Any:
        self.seen.append(type(module).__name__)
        return out + 1

    def forward(self, x):
        return self.layer(x), self.seen[-1]


def test_forward_hooks() -> None:
    check(Hooked(), X)


def test_full_backward_hook_runs() -> None:
    from tests.capture.harness import compiled

    found: list[list[Any]] = [[], []]
    grads = []
    for at in range(2):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        layer.register_full_backward_hook(lambda module, grad_in, grad_out, at=at: found[at].append(grad_out[0].sum()))
        x = X.clone().requires_grad_()
        (compiled(layer) if at else layer)(x).square().sum().backward()
        grads.append(x.grad)
    assert len(found[0]) == 1 and torch.equal(found[0][0], found[1][0]) and torch.equal(*grads)


def test_model_output() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def run(x):
        out = outputs.BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x,))
        return out, out[0] + out.last_hidden_state, list(out.keys()), out.to_tuple(), out.attentions

    check(run, X)


@pytest.mark.parametrize("name", CASES)
def test_construct(name: str) -> None:
    check(CASES[name], X.clone(), graphs=None)


class Shown:
    """A descriptor that answers on the class as well."""

    def __init__(self, held):
        self.held = held

    def __get__(self, obj, cls):
        return self.held if obj is None else self.held + obj.more


class Showing:
    shown = Shown(3)

    def __init__(self):
        self.more = 5


def test_descriptors_answer_on_a_class():
    def fn(x):
        return x * Showing.shown + Showing().shown

    check(fn, X)
    run = compiled(fn)
    run(X)
    vars(Showing)["shown"].held = 7
    try:
        assert same(run(X), fn(X))
    finally:
        vars(Showing)["shown"].held = 3
    check(lambda x: torch.distributions.Categorical(logits=x).entropy(), X)
