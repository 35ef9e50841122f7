"""Many different small models, compiled and dropped in one process: what they took comes back without `smelt.reset()`.

    python -m tests.longrun --models 10000

Each model is made anew, most of text that `exec` runs (a function, a class, an autograd function, a backend), called
a few times, some with a graph break, gradients or another size, and dropped. From the first tenth on (at most a
thousand models) resident memory and the number of mappings stay within a twentieth of what they were; and after a
collection nothing of a model is there any more: neither it nor its code, session, graphs and libraries.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt

LOOK = 25
"""Models between two collections."""

ALLOWED = 1.05

WIDTHS = (8, 12, 16, 24)

Held = list[tuple[str, weakref.ref[Any]]]


@dataclass
class Run:
    """One model and what must be gone when it is dropped.

    Attributes:
        call: runs it.
        held: weak references, by what they are of.
    """

    call: Callable[[], Any]
    held: Held = field(default_factory=list)

    def hold(self, what: str, value: Any) -> None:
        """This has to be gone."""
        self.held.append((what, weakref.ref(value)))


def made(text: str, name: str, number: int) -> Any:
    """What `name` is after the text has run."""
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "__name__": f"longrun_{number}"}
    exec(compile(text, f"<model {number}>", "exec"), scope)
    return scope[name]


class Block(nn.Module):
    """A class that many models share: its code stays, their versions do not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm, product, activation, product."""
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


def shared_class(number: int, width: int, choice: random.Random) -> Run:
    """An encoder of a class that stays."""
    model = nn.Sequential(Block(width), Block(width))
    compiled = smelt.compile(model)
    run = Run(lambda: compiled(torch.randn(3, width)).sum())
    run.hold("model", model)
    run.hold("parameter", model[0].inner.weight)
    return run


def training(number: int, width: int, choice: random.Random) -> Run:
    """Steps with an optimizer."""
    model = Block(width)
    compiled = smelt.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        compiled(torch.randn(3, width)).square().mean().backward()
        optimizer.step()

    run = Run(step)
    run.hold("model", model)
    run.hold("optimizer", optimizer)
    return run


def whole_step(number: int, width: int, choice: random.Random) -> Run:
    """A step with its optimizer in one graph, which reads numbers that change at each call."""
    model = Block(width)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, width)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = Run(smelt.compile(step))
    run.hold("model", model)
    run.hold("optimizer", optimizer)
    return run


def function(number: int, width: int, choice: random.Random) -> Run:
    """A function of text, with a constant of its own."""
    text = f"def fn{number}(x, k):\n    y = torch.tanh(x * k[{number}])\n    return (y + x).sum(-1)"
    fn = made(text, f"fn{number}", number)
    compiled = smelt.compile(fn)
    numbers = {number: torch.ones(1)}
    run = Run(lambda: compiled(torch.randn(4, width), numbers))
    run.hold("function", fn)
    run.hold("code", fn.__code__)
    return run


def breaking(number: int, width: int, choice: random.Random) -> Run:
    """A function with a graph break and what it calls."""
    text = (
        f"def inner(x):\n    return torch.relu(x) + {number % 7}\n"
        f"def fn{number}(x, seen):\n    y = inner(x * 2)\n    seen.append(y.sum().item())\n    eval('1')\n"
        "    return inner(y) - 1"
    )
    fn = made(text, f"fn{number}", number)
    compiled = smelt.compile(fn)
    run = Run(lambda: compiled(torch.randn(4, width), []))
    run.hold("function", fn)
    run.hold("code", fn.__code__)
    run.hold("code of what it calls", fn.__globals__["inner"].__code__)
    return run


def own_class(number: int, width: int, choice: random.Random) -> Run:
    """A class of text."""
    text = (
        f"class Net{number}(nn.Module):\n"
        "    def __init__(self, width):\n        super().__init__()\n        self.one = nn.Linear(width, width)\n"
        "        self.scale = torch.ones(width)\n"
        "    def forward(self, x):\n        return self.one(x).sigmoid() * self.scale"
    )
    kind = made(text, f"Net{number}", number)
    model = kind(width)
    compiled = smelt.compile(model)
    run = Run(lambda: compiled(torch.randn(3, width)).sum().backward())
    run.hold("class", kind)
    run.hold("model", model)
    run.hold("code", kind.forward.__code__)
    return run


def sizes(number: int, width: int, choice: random.Random) -> Run:
    """A function whose sizes change."""
    fn = made(f"def fn{number}(x):\n    return torch.softmax(x, -1).cumsum(0) + x.shape[0]", f"fn{number}", number)
    compiled = smelt.compile(fn)
    run = Run(lambda: compiled(torch.randn(choice.randint(2, 9), width)))
    run.hold("function", fn)
    run.hold("code", fn.__code__)
    return run


def own_operator(number: int, width: int, choice: random.Random) -> Run:
    """An autograd function of text."""
    text = (
        "class Own(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        ctx.save_for_backward(x)\n        return x.exp()\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * ctx.saved_tensors[0]\n"
        f"def fn{number}(x):\n    return Own.apply(x) * 3"
    )
    fn = made(text, f"fn{number}", number)
    compiled = smelt.compile(fn)
    run = Run(lambda: compiled(torch.randn(3, width, requires_grad=True)).sum().backward())
    run.hold("function", fn)
    run.hold("code", fn.__code__)
    run.hold("autograd function", fn.__globals__["Own"])
    return run


def own_backend(number: int, width: int, choice: random.Random) -> Run:
    """A backend that is a closure."""
    graphs: list[weakref.ref[Any]] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(weakref.ref(gm))
        return gm.forward

    fn = made(f"def fn{number}(x):\n    return x * {number} + x.sin()", f"fn{number}", number)
    compiled = smelt.compile(fn, backend=backend)

    def call() -> Any:
        result = compiled(torch.randn(3, width))
        run.held += [("graph", graph) for graph in graphs if ("graph", graph) not in run.held]
        return result

    run = Run(call)
    run.hold("function", fn)
    run.hold("backend", backend)
    return run


def closure(number: int, width: int, choice: random.Random) -> Run:
    """A function of a closure: its code stays."""
    held = nn.Parameter(torch.randn(width))

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * held, (x + held).amax(0)]

    compiled = smelt.compile(fn)
    run = Run(lambda: compiled(torch.randn(3, width)))
    run.hold("function", fn)
    run.hold("parameter", held)
    return run


Kind = Callable[[int, int, random.Random], Run]
KINDS: tuple[Kind, ...] = (
    shared_class,
    training,
    whole_step,
    function,
    breaking,
    own_class,
    sizes,
    own_operator,
    own_backend,
    closure,
)


def one(number: int, kinds: Sequence[Kind] = KINDS) -> Held:
    """Make, call and drop a model; what has to be gone."""
    choice = random.Random(number)
    kind = kinds[number % len(kinds)]
    run = kind(number, choice.choice(WIDTHS), choice)
    for _ in range(3):
        run.call()
    run.call = lambda: None
    return [(f"{what} of {kind.__name__}", ref) for what, ref in run.held]


def collect() -> None:
    """A look for garbage that is taken: `gc.collect()` silently does nothing while another thread is in one.

    That thread waits in the middle of it where a finalizer is Python code: those that unload libraries are.
    """
    before = gc.get_stats()[2]["collections"]
    gc.collect()
    while gc.get_stats()[2]["collections"] == before:
        time.sleep(0.001)
        gc.collect()


def resident_kib() -> int:
    """Resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def mappings() -> int:
    """Mappings of this process."""
    return Path("/proc/self/maps").read_text().count("\n")


@dataclass
class Watch:
    """Looks at the process between models.

    Attributes:
        warm: models after which memory has to stay as it is.
        held: what has to be gone at the next look.
        stays: how many of each were not.
        first: memory and mappings when it was warm.
        most: the largest ratios to these since.
    """

    warm: int
    begin: float = field(default_factory=time.monotonic)
    held: Held = field(default_factory=list)
    stays: Counter[str] = field(default_factory=Counter)
    first: tuple[int, int] | None = None
    most: tuple[float, float] = (0.0, 0.0)

    def look(self, number: int, tell: bool) -> None:
        """After so many models."""
        collect()
        self.stays.update(what for what, ref in self.held if ref() is not None)
        self.held.clear()
        now = resident_kib(), mappings()
        if number >= self.warm:
            self.first = self.first or now
            self.most = max(self.most[0], now[0] / self.first[0]), max(self.most[1], now[1] / self.first[1])
        if tell:
            seconds, objects = time.monotonic() - self.begin, len(gc.get_objects())
            row = f"{number:6} models {seconds:7.0f} s {now[0] / 1024:8.1f} MiB {now[1]:6} mappings {objects:8} objects"
            print(row, flush=True)

    def end(self) -> int:
        """1 where something stays."""
        print(
            f"at most {self.most[0]:.3f} of the memory and {self.most[1]:.3f} of the mappings after {self.warm} models;"
            f" stays: {dict(self.stays) or 'nothing'}"
        )
        return int(bool(self.stays) or max(self.most) > ALLOWED)


def main() -> int:
    """Run; 1 where something stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--every", type=int, default=100, help="models between two lines of output")
    parser.add_argument("--kinds", nargs="+", choices=[kind.__name__ for kind in KINDS])
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if not given.kinds or kind.__name__ in given.kinds]
    watch = Watch(min(1000, given.models // 10))
    for number in range(given.models):
        if number % LOOK == 0:
            watch.look(number, number % given.every == 0)
        watch.held += one(given.first + number, kinds)
    watch.look(given.models, True)
    return watch.end()


if __name__ == "__main__":
    sys.exit(main())
