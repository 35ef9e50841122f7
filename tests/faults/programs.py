"""Programs whose compilation goes through different parts of the compiler. Each begins anew from the same state."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt

Run = Callable[[], list[Any]]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        make: (compile) -> a call that begins from the same parameters and seeds, and gives all that it computes.
        draws: it draws random numbers, so that an interrupted call leaves the generators elsewhere.
    """

    name: str
    make: Callable[[Callable[[Any], Any]], Run]
    draws: bool = False


PROGRAMS: dict[str, Program] = {}


def program(draws: bool = False) -> Callable[[Callable[..., Run]], Callable[..., Run]]:
    def add(make: Callable[..., Run]) -> Callable[..., Run]:
        PROGRAMS[make.__name__] = Program(make.__name__, make, draws)
        return make

    return add


def _training(net: nn.Module, compile_it: Callable[[Any], Any], *inputs: torch.Tensor) -> Run:
    begin = {name: value.clone() for name, value in net.state_dict().items()}
    compiled = compile_it(net)

    def run() -> list[Any]:
        for name, value in net.state_dict().items():  # no `load_state_dict`: it has blocks that a fault may leave
            value.copy_(begin[name])
        net.zero_grad(set_to_none=True)
        loss = compiled(*inputs).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in net.parameters()), *net.buffers()]

    return run


@program()
def pointwise(compile_it: Callable[[Any], Any]) -> Run:
    x = torch.linspace(-1, 1, 24).view(4, 6)
    compiled = compile_it(lambda x: (x.sin() * 2 + x.t().reshape(4, 6)).sum(0))
    return lambda: [compiled(x), compiled(x[:2].repeat(2, 1))]


@program()
def perceptron(compile_it: Callable[[Any], Any]) -> Run:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    return _training(net, compile_it, torch.randn(5, 6))


class _Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = torch.relu(self.first(x))
        for k in range(2):
            if y.sum() > 1e9:  # a break
                y = y * k
        with torch.no_grad():
            shift = y.mean()
        try:
            return self.second(y) + shift
        finally:
            self.calls -= 1


@program()
def breaks(compile_it: Callable[[Any], Any]) -> Run:
    torch.manual_seed(0)
    return _training(_Breaking(), compile_it, torch.ones(2, 4))


@program()
def regions(compile_it: Callable[[Any], Any]) -> Run:
    torch.manual_seed(0)
    weight = torch.randn(6, 6, requires_grad=True)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ weight
        with torch.no_grad():
            z = y.float().sum()
        with torch.autograd.graph.save_on_cpu() if x.requires_grad else contextlib.nullcontext():
            return y.float() * z, x.exp()

    compiled, x = compile_it(fn), torch.ones(3, 6)

    def run() -> list[Any]:
        weight.grad = None
        first, second = compiled(x)
        first.sum().backward()
        return [first, second, weight.grad]

    return run


@program(draws=True)
def drawing(compile_it: Callable[[Any], Any]) -> Run:
    def fn(x: torch.Tensor) -> torch.Tensor:
        scale = random.random() + 1
        return nn.functional.dropout(x, 0.5) * scale + torch.rand(x.shape)

    compiled, x = compile_it(fn), torch.ones(4, 5)

    def run() -> list[Any]:
        torch.manual_seed(0)
        random.seed(0)
        return [compiled(x), torch.rand(2), random.random()]

    return run


@program()
def buffers(compile_it: Callable[[Any], Any]) -> Run:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return _training(net, compile_it, torch.randn(2, 2, 6, 6))


@program()
def transforms(compile_it: Callable[[Any], Any]) -> Run:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    compiled = compile_it(lambda x: (torch.func.vmap(torch.func.grad(inner))(x), torch.func.jvp(inner, (x,), (x,))[1]))
    return lambda: [*compiled(torch.linspace(0, 1, 6).view(2, 3))]


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda y: self.layer(y).tanh(), x, use_reentrant=False) * 2


@program(draws=True)  # checkpoint keeps the generators' states
def checkpointed(compile_it: Callable[[Any], Any]) -> Run:
    torch.manual_seed(0)
    return _training(_Checkpointed(), compile_it, torch.randn(3, 4))


@program()
def containers(compile_it: Callable[[Any], Any]) -> Run:
    def parts(x: torch.Tensor) -> Any:
        for row in x:
            yield row * 2

    def fn(x: torch.Tensor, kept: list[Any], **more: Any) -> dict[str, Any]:
        kept.append(x + 1)
        try:
            found = [*parts(x)]
            more["missing"]
        except KeyError:
            found.append(x.sum(0))
        return {"found": found, "size": x.shape[0] + len(kept), **{k: v * 2 for k, v in more.items()}}

    compiled, x = compile_it(fn), torch.arange(6.0).view(2, 3)

    def run() -> list[Any]:
        kept: list[Any] = []
        out = compiled(x, kept, scale=x)
        return [*kept, *out["found"], out["size"], out["scale"]]

    return run


@program()
def devices(compile_it: Callable[[Any], Any]) -> Run:
    def fn(n: int, x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            y = torch.arange(n) + torch.ones(n)
        with torch.inference_mode():
            z = y * 2
        return z.clone() + x[:n].nonzero().sum()

    compiled = compile_it(fn)
    return lambda: [compiled(5, torch.ones(7)), compiled(6, torch.ones(7))]


@program()
def twice(compile_it: Callable[[Any], Any]) -> Run:
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    compiled = compile_it(lambda w: (w**3).sum() * w.prod())

    def run() -> list[Any]:
        (first,) = torch.autograd.grad(compiled(w), w, create_graph=True)
        return [first, *torch.autograd.grad(first.sum(), w)]

    return run


def compiled_by(backend: str) -> Callable[[Any], Any]:
    """How a program is compiled: with eager's random numbers."""
    options: Any = {"eager_rng": True} if backend == "smelt" else None
    return lambda fn: smelt.compile(fn, backend=backend, options=options)
