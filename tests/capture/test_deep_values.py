"""Objects within objects within objects: as deep as eager bears it, given to a function, kept or returned by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

DEPTH = 10_000


class Box:
    """Holds something."""

    inner: Any

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def _closure(inner: Any) -> Callable[[], Any]:
    return lambda: inner


class Chain(torch.nn.Module):
    """A module around a module."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """That of the innermost."""
        module: Any = self
        while isinstance(module, Chain):
            module = module.inner
        return module(x)


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "lists": (lambda inner: [inner], lambda outer: outer[0]),
    "tuples": (lambda inner: (inner,), lambda outer: outer[0]),
    "dicts": (lambda inner: {"a": inner}, lambda outer: outer["a"]),
    "objects": (Box, lambda outer: outer.inner),
    "closures": (_closure, lambda outer: outer()),
    "lists of tuples": (lambda inner: [(inner, 1)], lambda outer: outer[0][0]),
}


def nested(value: Any, around: Callable[[Any], Any], depth: int = DEPTH) -> Any:
    for _ in range(depth):
        value = around(value)
    return value


def innermost(value: Any, inside: Callable[[Any], Any]) -> Any:
    while not isinstance(value, Tensor):
        value = inside(value)
    return value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [50, DEPTH])
def test_returned(kind: str, depth: int) -> None:
    around, inside = KINDS[kind]
    run = smelt.compile(lambda x: nested(x * 2, around, depth))
    for _ in range(2):
        assert torch.equal(innermost(run(torch.ones(3)), inside), torch.full((3,), 2.0))
    assert smelt.stats()["breaks"] == (depth == DEPTH)


@pytest.mark.parametrize("kind", KINDS)
def test_given(kind: str) -> None:
    around, inside = KINDS[kind]
    run = smelt.compile(lambda value: innermost(value, inside) * 2)
    for _ in range(2):
        assert torch.equal(run(nested(torch.ones(3), around)), torch.full((3,), 2.0))


@pytest.mark.parametrize("kind", KINDS)
def test_kept(kind: str) -> None:
    around, inside = KINDS[kind]

    def f(x: Tensor, box: Box) -> Tensor:
        box.inner = nested(x * 2, around)
        return x + 1

    run = smelt.compile(f)
    for _ in range(2):
        box = Box(None)
        assert torch.equal(run(torch.ones(3), box), torch.full((3,), 2.0))
        assert torch.equal(innermost(box.inner, inside), torch.full((3,), 2.0))


def test_looked_at() -> None:
    """Where Python's own C code gives up, so it does in a compiled function."""

    def f(x: Tensor) -> Tensor:
        try:
            return x * len(str(nested(1, lambda inner: [inner])))
        except RecursionError:
            return x * 3

    assert torch.equal(smelt.compile(f)(torch.ones(3)), f(torch.ones(3)))


@pytest.mark.parametrize("build", [lambda n: nested(torch.nn.Linear(3, 3), Chain, n)])
def test_modules(build: Callable[[int], torch.nn.Module]) -> None:
    model, x = build(DEPTH), torch.ones(2, 3)
    torch.testing.assert_close(smelt.compile(model)(x), model(x))
