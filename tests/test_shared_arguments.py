"""Arguments that share memory, some of them written, at some calls and not at others: eager's values each time.

Two tensors may show the same memory through one storage or through two (NumPy, DLPack, the buffer protocol), and one of
them may belong to a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smelt

SIZE = 24


def by_slices(start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(float(SIZE))
    return base[:length], base[start : start + length]


def by_numpy(start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    base = np.arange(SIZE, dtype=np.float32)
    return torch.from_numpy(base[:length]), torch.from_numpy(base[start : start + length])


def by_dlpack(start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(float(SIZE))
    return base[:length], torch.from_dlpack(base[start:])[:length]


def by_buffers(start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    base = bytearray(np.arange(SIZE, dtype=np.float32).tobytes())
    later = torch.frombuffer(base, dtype=torch.float32, offset=4 * start, count=length)
    return torch.frombuffer(base, dtype=torch.float32, count=length), later


SHARING = [by_slices, by_numpy, by_dlpack, by_buffers]
STARTS = [12, 4, 0, 7, 8, 1]  # apart and overlapping in turn


def writes_the_first(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a.mul_(2)
    return b + 1, a - b


def writes_both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a.add_(1)
    c = b * 2
    b.mul_(3)
    return c, a * 1


@pytest.mark.parametrize("program", [writes_the_first, writes_both])
@pytest.mark.parametrize("share", SHARING)
@pytest.mark.parametrize("starts", [STARTS, STARTS[1:]])
@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_shared_by_two_arguments(program: Any, share: Any, starts: list[int], dynamic: bool | None) -> None:
    c = smelt.compile(program, dynamic=dynamic)
    for start in starts:
        given, expected = share(start, 8), share(start, 8)
        for got, right in zip((*c(*given), *given), (*program(*expected), *expected), strict=True):
            assert torch.equal(got, right), start


@pytest.mark.parametrize("share", [by_numpy, by_dlpack, by_buffers])
def test_memory_shared_by_buffers_with_storages_of_their_own(share: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in zip("ab", share(2, 8), strict=True):
                self.register_buffer(name, tensor)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.b.add_(x)
            y = self.a * 2
            self.a.mul_(2)
            return y, self.b + 1

    model, right = Model(), Model()
    c = smelt.compile(model)
    for call in range(3):
        x = torch.full((8,), float(call))
        for got, expected in zip(c(x), right(x), strict=True):
            assert torch.equal(got, expected)
    assert torch.equal(model.a, right.a)


class Reads(nn.Module):
    """Writes the argument, reads its members."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flat", torch.arange(6.0))
        self.register_buffer("part", self.flat[2:5])
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.flat * 2
        x.add_(1)
        return y, self.flat + y, self.part * 1, (self.weight * 2).detach()


class Writes(Reads):
    """Writes its members, reads the argument."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.flat.mul_(2)
        y = x + 1
        self.part[0] = x[0] + 5
        return y, x.sum(), self.flat * 1


MEMBERS: list[Callable[[Reads], torch.Tensor]] = [
    lambda m: m.flat[:3],
    lambda m: torch.ones(3),
    lambda m: m.flat[3:],
    lambda m: m.part,
    lambda m: m.weight.detach(),
    lambda m: m.flat[::2],
]


@pytest.mark.parametrize("kind", [Reads, Writes])
@pytest.mark.parametrize("first", range(len(MEMBERS)))
def test_memory_shared_by_an_argument_and_a_member_of_the_module(kind: type[Reads], first: int) -> None:
    model, right = kind(), kind()
    c = smelt.compile(model)
    for give in (*MEMBERS[first:], *MEMBERS[:first]):
        for got, expected in zip(c(give(model)), right(give(right)), strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(model.flat, right.flat) and torch.equal(model.weight, right.weight)


def test_running_statistics_given_as_an_argument() -> None:
    norm, right = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    c = smelt.compile(lambda x, s: (norm(x), s * 2))
    for call in range(4):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(call))
        shared = [[torch.ones(3), m.running_mean, m.running_mean[:2], m.running_var.view(3, 1)] for m in (norm, right)]
        given, expected = shared[0][call], shared[1][call]
        torch.testing.assert_close(c(x, given), (right(x), expected * 2))


class Partly(nn.Module):
    """Buffers of which none covers the other."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.arange(10.0)
        self.register_buffer("a", flat[:4])
        self.register_buffer("b", flat[2:6])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.a.add_(x)
        y = self.b * 2
        self.b.mul_(0.5)
        return y, self.a + 1


class AsOtherTypes(nn.Module):
    """Buffers of several layouts and dtypes."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.arange(12.0)
        self.register_buffer("a", flat.view(3, 4))
        self.register_buffer("b", flat.view(4, 3).t())
        self.register_buffer("c", flat.view(torch.int32))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.a[0].add_(x)
        self.b.mul_(2)
        return self.c & 0xFFFF, self.a.sum()


class Parameters(nn.Module):
    """A parameter that is a slice of a buffer; the buffer, or the parameter, is written."""

    def __init__(self, writes: str) -> None:
        super().__init__()
        self.writes = writes
        self.register_buffer("flat", torch.arange(10.0))
        self.weight = nn.Parameter(self.flat[2:6])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            getattr(self, self.writes).mul_(0.5)
        return self.weight * x + self.flat[1:5]


@pytest.mark.parametrize(
    "make", [Partly, AsOtherTypes, lambda: Parameters("flat"), lambda: Parameters("weight")], ids=range(4)
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_members_that_share_memory_and_are_written(make: Callable[[], nn.Module], dynamic: bool | None) -> None:
    model, right = make(), make()
    c = smelt.compile(model, dynamic=dynamic)
    for call in range(3):
        x = torch.arange(4.0) + call
        torch.testing.assert_close(c(x), right(x))
    for got, expected in zip(model.state_dict().values(), right.state_dict().values(), strict=True):
        assert torch.equal(got, expected)
