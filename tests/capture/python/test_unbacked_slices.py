"""`x[:n]` and `x[n]` with a number from a tensor: one graph for all numbers, cut off at the ends as Python does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

NUMBERS = (2, 3, 0, 9, -2, 1, -9, 6, 4)
ROWS = torch.arange(12.0).view(6, 2)


def head(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    return x[:k] * 2, x[:k].shape[0]


def tail(x: torch.Tensor, n: torch.Tensor) -> Any:
    return x[n.item() :] + 1


def middle(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    return x[1:k].sum(0), x[k : k + 2] * 3


def tensor_bound(x: torch.Tensor, n: torch.Tensor) -> Any:
    return x[: n.max()].clone(), x[: int((x > n).sum()) : 2]


def columns(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    return x[..., :k] * 2, x[None, k:, 1:] + 1, x[:, : k - 1].t() + 1


def written(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    z = x.clone()
    z[:k] = 0
    z[k:] += 1
    return z


def reduced(x: torch.Tensor, n: torch.Tensor) -> Any:
    part = x[: n.item()]
    return part @ x.t(), torch.cat([part, part]), part.softmax(0)


@pytest.mark.parametrize("backend", ["eager", "smelt"])
@pytest.mark.parametrize("fn", [head, tail, middle, tensor_bound, columns, written, reduced], ids=lambda f: f.__name__)
def test_a_slice_is_whole(fn: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(fn, backend=backend, fullgraph=True, dynamic=True if fn is head else None)
    for number in NUMBERS:
        n = torch.tensor(number)
        torch.testing.assert_close(compiled(ROWS, n), fn(ROWS, n))


def test_derivatives() -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        return x[:k].square().sum() + 3 * x[k:].sum()

    compiled = smelt.compile(fn, fullgraph=True)
    for number in NUMBERS:
        grads = []
        for run in (compiled, fn):
            x = ROWS.clone().requires_grad_()
            run(x, torch.tensor(number)).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_an_item() -> None:
    """An index out of range is eager's error."""

    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[n.item()] * 2

    compiled = smelt.compile(fn, fullgraph=True)
    for number in (2, 3, -1, 0, 5, 4):
        torch.testing.assert_close(compiled(ROWS, torch.tensor(number)), fn(ROWS, torch.tensor(number)))
    for number in (6, -7):
        with pytest.raises(IndexError, match=f"index {number} is out of bounds for dimension 0 with size 6"):
            compiled(ROWS, torch.tensor(number))


@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_a_slice_is_a_view(backend: str) -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> Any:
        k = n.item()
        return x[:k], x[k:], x[k]

    compiled = smelt.compile(fn, backend=backend)
    for number in (2, 3, 4, 1):
        x = ROWS.clone()
        for part in compiled(x, torch.tensor(number)):
            part.add_(1)
        assert x.tolist() == [[v + 1 + (i == number) for v in row] for i, row in enumerate(ROWS.tolist())]


@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_a_range(backend: str) -> None:
    def fn(n: torch.Tensor) -> Any:
        k = n.item()
        return torch.arange(k) * 2, torch.arange(1, k + 1, 2)

    compiled = smelt.compile(fn, backend=backend, fullgraph=True)
    for number in (2, 3, 5, 1, 0):
        torch.testing.assert_close(compiled(torch.tensor(number)), fn(torch.tensor(number)))
    with pytest.raises(RuntimeError, match="upper bound and lower bound inconsistent|upper bound and larger bound"):
        compiled(torch.tensor(-2))


@pytest.mark.parametrize("backend", ["eager", "smelt"])
@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda w: w[2], IndexError),
        (lambda w: w.narrow(0, 1, 2), RuntimeError),
        (lambda w: w.kthvalue(3, 0), RuntimeError),
        (lambda w: w + torch.ones(3, 2), RuntimeError),
    ],
)
def test_unused_calls_still_raise(use: Callable[..., Any], error: type[Exception], backend: str) -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> Any:
        use(x[: n.item()].clone())
        return x + 1

    compiled = smelt.compile(fn, backend=backend)
    torch.testing.assert_close(compiled(ROWS, torch.tensor(3)), ROWS + 1)
    with pytest.raises(error):
        compiled(ROWS, torch.tensor(2))
