"""Models and functions that artefacts are made for: at the top level of a module, where another process finds them."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ran: list[str] = []
"""What the program did to the outside."""


@dataclass
class Output:
    """What a model of a library returns."""

    loss: Tensor
    logits: Tensor


class Classifier(nn.Module):
    """Products, a normalisation, dropout, and a loss beside the logits."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, width), nn.LayerNorm(width)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(width, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Output:
        logits = self.last(self.drop(F.gelu(self.norm(self.first(x)))))
        return Output(F.cross_entropy(logits, labels), logits)


class Statistics(nn.Module):
    """Writes its buffers in training, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": torch.relu(self.norm(x))}


class Loud(nn.Module):
    """Tells when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        ran.append("forward")
        return torch.dropout(x * self.weight, 0.5, True).sum()


class Branching(nn.Module):
    """Goes one way or the other by a value."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() > 0:
            print("positive")
        return x + 1


def scaled(x: Tensor, y: Tensor, *, by: float = 2.0) -> Tensor:
    """A function of two matrices."""
    return torch.relu(x @ y) * by


def rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """A view of the argument beside what is computed."""
    return x[1:], x.softmax(-1)


def written(x: Tensor) -> Tensor:
    """Writes its argument."""
    x.add_(1)
    return x * 2


def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three results with gradients."""
    h = torch.tanh(x @ w)
    return h, (h * h).sum(), h.exp()


def picked(x: Tensor, at: Tensor) -> Tensor:
    """Fails where an index is out of range."""
    return x[at] * 2


ARGUMENTS: dict[str, Any] = {
    "scaled": lambda: (torch.randn(3, 4), torch.randn(4, 5)),
    "rows": lambda: (torch.randn(3, 4),),
    "written": lambda: (torch.randn(3, 4),),
    "two": lambda: (torch.randn(3, 4), torch.randn(4, 5)),
}


SCALE = 3.0


class Mode(enum.Enum):
    """What a model branches on."""

    A = 1
    B = 2


def decorated(f: Callable[..., Any]) -> Callable[..., Any]:
    """As libraries wrap `forward`."""

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    """Its frame is the wrapper's; reads a global and an enumeration."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mode = nn.Linear(4, 4), Mode.A

    @decorated
    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        y = self.linear(x) * scale * SCALE
        return y + 1 if self.mode is Mode.B else y


class Star(nn.Module):
    """Takes any arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, *xs: Tensor, **more: float) -> Tensor:
        return self.linear(xs[0]) + xs[1] * more.get("times", 1)


class Tied(nn.Module):
    """One parameter under two names, repeated blocks, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.out.weight = self.embed.weight
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))
        self.register_buffer("places", torch.arange(5.0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places[: ids.shape[1], None]
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Doubled(nn.Module):
    """Containers in and out."""

    def forward(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
        return {key: value * 2 for key, value in batch.items()}, [value.sum() for value in batch.values()]


class Images(nn.Module):
    """Convolution, statistics, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)


class Pair(NamedTuple):
    """A result with names."""

    a: Tensor
    b: Tensor


def pair(x: Tensor) -> Pair:
    """Makes one."""
    return Pair(x + 1, x * 2)


def closure(times: int) -> Callable[[Tensor], Tensor]:
    """A function that another one makes."""

    def inner(x: Tensor) -> Tensor:
        return x * times

    return inner


class Named(collections.OrderedDict[str, Any]):
    """As `ModelOutput` of transformers: a dict of a class of its own, which is filled without its methods."""


PAIR = re.compile(r"(\w)(\w)")


def many_kinds(x: Tensor, names: str) -> tuple[Any, ...]:
    """Results that are made again after the graph: containers, iterators that have begun, a match."""
    begun, table = iter([1, 2, 3]), iter({"a": 1, "b": 2})
    next(begun), next(table), next(table), next(table, None)
    found = PAIR.match(names)
    return Named(y=x.sin(), z=x + 1), begun, table, found


class Stateful(nn.Module):
    """Writes attributes that it reads: `what` says which."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner, self.what = nn.Linear(4, 4), what
        self.count, self.ready, self.text, self.scale = 0, False, "", 0.5
        self.inner.count = 7  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if self.what == "count":
            self.count += 1
            return y * self.count
        if self.what == "ready":
            first, self.ready = not self.ready, True
            return y + 1 if first else y * 2
        if self.what == "late":
            if not hasattr(self, "offset"):
                self.offset = 3
            return y + self.offset
        if self.what == "inner":
            self.inner.count = 11 - self.inner.count  # type: ignore[operator,assignment]
            return y * self.inner.count
        if self.what == "text":
            self.text += "x"
            return y * len(self.text)
        self.scale *= 2
        return y * self.scale


_FACTORS = {"alpha": 2.0, "beta": 0.5, "gamma": -1.5, "delta": 3.0}
_NAMES = {*_FACTORS}
_FROZEN = frozenset(_NAMES)
_SORTED = tuple(sorted(_NAMES))


def stored(container: Any, key: object, value: object) -> Any:
    container[key] = value
    return container


SET_ORDERS: dict[str, Callable[[str], Iterable[str]]] = {
    "a loop over a literal": lambda last: [name for name in {"alpha", "beta", "gamma", "delta"}],
    "a list of a set with a variable": lambda last: [*{"alpha", "beta", "gamma", last}],
    "a set of an outer tuple": lambda last: list(set(_SORTED)),
    "a set from outside": lambda last: _NAMES,
    "a difference": lambda last: {"alpha", "beta", "gamma", last, "epsilon"} - {"epsilon"},
    "a dictionary of a set": lambda last: dict.fromkeys({"alpha", "beta", "gamma", last}),
    "the first": lambda last: [next(iter({"alpha", "beta", "gamma", last}))],
    "sorted by a key that ties": lambda last: sorted({"gamma", "delta", "alpha", last}, key=len),
    "text": lambda last: f"{ {'alpha', 'beta', 'gamma', last} }"[2:-2].split("', '"),
    "text of a list": lambda last: "%s".__mod__([{"alpha", "beta", last}])[3:-3].split("', '"),
    "joined": lambda last: ",".join({"alpha", "beta", "gamma", last}).split(","),
    "a keyword": lambda last: collections.deque(iterable={"alpha", "beta", "gamma", last}),
    "in a list": lambda last: itertools.chain.from_iterable([{"alpha", "beta", "gamma", last}]),
    "in an iterator's argument": lambda last: next(itertools.permutations(iterable={"alpha", "beta", last})),
    "extended": lambda last: operator.iadd(["beta"], {"alpha", "gamma", last}),
    "a slice": lambda last: stored([], slice(None), {"alpha", "gamma", last}),
    "a hash": lambda last: _SORTED[hash((last, 1)) % 4 :],
    "a method's hash": lambda last: _SORTED[last.__hash__() % 4 :],
    "what is left of a set": lambda last: [_SORTED[i % 3] for i in {"alpha", last, 1, 9} - {"alpha", last}],
    "sorted by a partial order": lambda last: [min(s) for s in sorted({frozenset([last]), frozenset(["beta"])})],
    "free: numbers": lambda last: [_SORTED[i] for i in {3, 1, 2, 0}],
    "free: sorted": lambda last: sorted({"alpha", "beta", "gamma", last}),
    "free: sorted outside": lambda last: _SORTED,
    "free: membership": lambda last: [name for name in _SORTED if name in {"alpha", "beta", last}],
    "free: a set from outside is sorted": lambda last: sorted(_NAMES, reverse=True),
    "free: membership outside": lambda last: [name for name in _FACTORS if name in _NAMES and name in _FROZEN],
    "free: compared outside": lambda last: _SORTED[: 1 + (_NAMES > {"alpha"}) + _NAMES.isdisjoint({last})],
    "free: combined outside": lambda last: sorted(_NAMES & {"alpha", last} | _FROZEN),
    "free: stored": lambda last: sorted(stored({}, "key", {"alpha", last})["key"]),
}
"""How names are put in order -> the order, given the last name; "free" are those without the order of a set."""


def in_set_order(x: Tensor, how: str) -> Tensor:
    for name in SET_ORDERS[how]("delta"):
        x = (x * _FACTORS[name] + 1).sin()
    return x
