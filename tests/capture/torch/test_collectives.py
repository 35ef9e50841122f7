"""smelt/capture/torch/collectives.py: collectives inside a compiled function, in a group of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import smelt
from tests.capture.harness import check, same

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    made = not dist.is_initialized()  # a model of another test may have made it
    if made:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if made:
        dist.destroy_process_group()


def gathered(x: Any) -> Any:
    found = [torch.ones_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x, async_op=False)
    return torch.cat(found) + 1


def broadcast(x: Any) -> Any:
    order = torch.arange(x.shape[0]).flip(0)
    dist.broadcast(order, src=0)
    return x[order]


def reduced(x: Any) -> Any:
    total = x * 2
    dist.all_reduce(total, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    return total


@pytest.mark.parametrize("fn", [gathered, broadcast, reduced], ids=lambda fn: fn.__name__)
def test_one_graph(fn: Any) -> None:
    check(fn, X, graphs=1)
    assert same(smelt.compile(fn, fullgraph=True)(X), fn(X))


@pytest.mark.parametrize("fn", [gathered, broadcast, reduced], ids=lambda fn: fn.__name__)
@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_gradients_pass_what_is_written_by(fn: Any) -> None:
    """Collectives that write record nothing; the functional ones that a graph holds have derivatives of their own."""
    found = []
    for call in (fn, smelt.compile(fn)):
        x = X.clone().requires_grad_()
        result = call(x)
        if result.requires_grad:
            (result * X).sum().backward()
        found.append((result.detach(), result.requires_grad, x.grad))
    (want, asks, gradient), (got, also_asks, own) = found
    assert same(got, want) and also_asks == asks and (gradient is None) == (own is None)
    assert gradient is None or same(own, gradient)


def test_an_asynchronous_collective_is_a_break() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        return y

    found = check(fn, X, breaks=2)
    assert found.break_reasons[0].title == "an asynchronous collective"


class Exchanged(torch.autograd.Function):
    """Both directions exchange what nothing reads, as a program that logs a norm on one rank does."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        dist.broadcast(x * 2, 0)
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        dist.all_reduce(grad * 2, dist.ReduceOp.MAX)
        dist.broadcast(grad * 5, 0)
        return grad * 3


def unread(x: Any) -> Any:
    y, z = x * 2, x + 3
    dist.all_reduce(y)
    dist.broadcast(z, 0)
    dist.all_reduce(z)
    return Exchanged.apply(x) + 1


def only_exchanged(x: Any) -> Any:
    dist.all_reduce(x * 2)
    dist.broadcast(x + 1, 0)


def equal(x: Any) -> Any:
    y, z = x * 2, x * 2
    dist.all_reduce(y)
    dist.all_reduce(z)
    return y + z


def independent(x: Any) -> Any:
    """Their results are used in another order, and take memory for as long as that order says."""
    large, small = torch.cat([x] * 50), x + 1
    dist.all_reduce(large)
    dist.broadcast(small, 0)
    other = x * 3
    dist.all_reduce(other)
    return (other + 1).sum() + small.sum(), large * 2


def _exchanges(call: Any, x: Any) -> list[str]:
    with torch.profiler.profile() as seen:
        out = call(x)
        if x.requires_grad and isinstance(out, torch.Tensor):
            out.sum().backward()
    return [event.name for event in seen.events() if event.name.startswith("c10d::")]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("fn", [unread, only_exchanged, equal, independent], ids=lambda fn: fn.__name__)
@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_each_collective_runs_once_in_order(fn: Any, gradients: bool) -> None:
    """Other processes take part, whether this one reads the results or not."""
    x = X.clone().requires_grad_(gradients)
    compiled = smelt.compile(fn, fullgraph=True)
    compiled(x)
    want = _exchanges(fn, x)
    assert len(want) > 1 and _exchanges(compiled, x) == want
