"""View simplifications: chains become one node, identities vanish, values stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.prims.test_simplify import CPU, built, eager

X = torch.arange(24.0).reshape(2, 3, 4)


ROW = ((1, 0, 0), (2, 3, 4), (1, 1, 1))
PART = ((0, 0, 1), (2, 3, 4), (1, 1, 2))
DEEP = ((1, 0, 1), (2, 3, 2), (1, 1, 1))


def row(p: Any, x: Any) -> Any:
    return p.slice(x, *ROW)


def cut(p: Any, x: Any) -> Any:
    return p.slice(x, *PART)


def y(p: Any, shape: tuple[int, ...]) -> Any:
    return p.full(shape, 7.0, torch.float32, CPU)


CASES = {
    "reshape to itself": (lambda p, x: p.reshape(x, (2, 3, 4)), []),
    "reshape twice": (lambda p, x: p.reshape(p.reshape(x, (24,)), (4, 6)), ["reshape"]),
    "reshape back": (lambda p, x: p.reshape(p.reshape(x, (24,)), (2, 3, 4)), []),
    "reshape of a constant": (lambda p, x: p.reshape(p.full((4,), 1.0, torch.float32, CPU), (2, 2)), ["full"]),
    "permute by nothing": (lambda p, x: p.permute(x, (0, 1, 2)), []),
    "permute twice": (lambda p, x: p.permute(p.permute(x, (1, 2, 0)), (1, 2, 0)), ["permute"]),
    "permute back": (lambda p, x: p.permute(p.permute(x, (2, 0, 1)), (1, 2, 0)), []),
    "ones move": (lambda p, x: p.permute(p.reshape(x, (24, 1, 1)), (1, 2, 0)), ["reshape"]),
    "broadcast to itself": (lambda p, x: p.broadcast_in_dim(x, (2, 3, 4), (0, 1, 2)), []),
    "broadcast twice": (
        lambda p, x: p.broadcast_in_dim(p.broadcast_in_dim(x, (5, 2, 3, 4), (1, 2, 3)), (6, 5, 2, 3, 4), (1, 2, 3, 4)),
        ["broadcast_in_dim"],
    ),
    "broadcast of kept dims": (
        lambda p, x: p.broadcast_in_dim(p.reshape(p.sum(x, (1,)), (2, 1, 4)), (2, 3, 4), (0, 1, 2)),
        ["sum", "broadcast_in_dim"],
    ),
    "only ones come in": (lambda p, x: p.broadcast_in_dim(x, (2, 1, 3, 4), (0, 2, 3)), ["reshape"]),
    "broadcast of a constant": (
        lambda p, x: p.broadcast_in_dim(p.full((4,), 1.0, torch.float32, CPU), (2, 4), (1,)),
        ["full"],
    ),
    "slice of everything": (lambda p, x: p.slice(x, (0, 0, 0), (2, 3, 4), (1, 1, 1)), []),
    "slice twice": (
        lambda p, x: p.slice(p.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)), (0, 1, 0), (1, 2, 2), (1, 1, 1)),
        ["slice"],
    ),
    "slice steps twice": (
        lambda p, x: p.slice(p.slice(p.reshape(x, (24,)), (1,), (24,), (3,)), (1,), (7,), (2,)),
        ["reshape", "slice"],
    ),
    "slice to nothing": (
        lambda p, x: p.slice(p.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 1)), (0, 2, 0), (2, 2, 4), (1, 1, 1)),
        ["slice"],
    ),
    "write to a part of a part": (
        lambda p, x: p.slice_scatter(x, p.slice_scatter(cut(p, x), y(p, (1, 3, 1)), *DEEP), *PART),
        ["full", "slice_scatter"],
    ),
    "write to an element": (
        lambda p, x: p.slice_scatter(
            x,
            p.reshape(p.slice_scatter(p.reshape(row(p, x), (3, 4)), y(p, (1, 2)), (1, 1), (2, 4), (1, 2)), (1, 3, 4)),
            *ROW,
        ),
        ["full", "slice_scatter"],
    ),
    "write to a part of another part": (
        lambda p, x: p.slice_scatter(x, p.slice_scatter(cut(p, p.flip(x, (0,))), y(p, (1, 3, 1)), *DEEP), *PART),
        ["flip", "slice", "full", "slice_scatter", "slice_scatter"],
    ),
    "flip of ones": (lambda p, x: p.flip(p.reshape(x, (1, 24)), (0,)), ["reshape"]),
    "pad by nothing": (lambda p, x: p.pad(x, (0, 0, 0), (0, 0, 0), 1.0), []),
    "cat of one": (lambda p, x: p.cat((x,), 1), []),
    "cat with nothing": (lambda p, x: p.cat((x, p.slice(x, (0, 0, 0), (2, 0, 4), (1, 1, 1))), 1), []),
    "sum over nothing": (lambda p, x: p.sum(x, ()), ["add"]),
    "sum over ones": (lambda p, x: p.sum(p.reshape(x, (2, 1, 12)), (1,)), ["add", "reshape"]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_views(name: str):
    make, want = CASES[name]
    names, value = built(make, X)
    assert sorted(names) == sorted(want)
    assert torch.equal(value, eager(make, X))
