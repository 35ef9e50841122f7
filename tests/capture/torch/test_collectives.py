"""smelt/capture/torch/collectives.py: collectives inside a compiled function, in a group of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.nn.functional as nnf
from torch.distributed.device_mesh import init_device_mesh

import smelt
from smelt.runtime.library import collectives
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


def asynchronous(x: Any) -> Any:
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    z = x * 3
    work.wait()
    return y * z


def polled(x: Any) -> Any:
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    while not work.is_completed():
        work.wait()
    return y * 2 if work.is_success() else x


def rooted(x: Any) -> Any:
    y, own, found = x + 1, torch.zeros_like(x), [torch.zeros_like(x)]
    dist.reduce(tensor=y, dst=0, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    dist.gather(y, found, dst=0)
    dist.barrier()
    dist.scatter(own, found, src=0)
    return y * own


def listed(x: Any) -> Any:
    own, bits = torch.zeros_like(x), x.int()
    dist.reduce_scatter(own, [x.detach() * 2])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    return own + bits


class Rooted(torch.autograd.Function):
    """The same inside of a function, whose code runs below capture."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return rooted(x) * asynchronous(x) + listed(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return rooted(grad)


def in_a_function(x: Any) -> Any:
    return Rooted.apply(x) * x


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1,), ()])
@pytest.mark.parametrize("fn", [asynchronous, polled, rooted, listed, in_a_function], ids=lambda fn: fn.__name__)
def test_more_of_them_are_one_graph(fn: Any, shape: tuple[int, ...]) -> None:
    check(fn, torch.ones(shape) * 3, graphs=1)


def test_a_handle_that_leaves_is_one_of_a_collective_that_has_ended() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        return y, dist.broadcast(y, 0, async_op=True)

    y, work = smelt.compile(fn, fullgraph=True)(X)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is y and work.get_future().wait()[0] is y


def test_writes_visible_to_others_come_before_a_barrier() -> None:
    said: list[int] = []

    def fn(x: Any) -> Any:
        said.append(1)
        dist.barrier()
        return x + 1

    found = smelt.explain(fn)(X)
    assert found.break_reasons[0].title == "a barrier after what others may see" and said == [1]


def test_a_new_default_group_is_another_one() -> None:
    """Graphs hold the names of groups."""
    if dist.group.WORLD.size() != 1:
        pytest.skip("another test has made the group")
    fn = smelt.compile(reduced)
    want = reduced(X)
    for _ in range(2):
        assert same(fn(X), want)
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


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


def overlapped(x: Any) -> Any:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    own, bits = (x + 3).cumsum(0), torch.ones(2, dtype=torch.int64)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    return y * own * bits.sum()


def test_computation_runs_while_collectives_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins when its operand is there and is waited for before its first reader, wherever the program waits."""

    def wait(begun: collectives.Begun) -> None:
        with torch.profiler.record_function("waits"):
            begun.work.wait()

    monkeypatch.setattr(collectives.Begun, "wait", wait)
    compiled = smelt.compile(overlapped, fullgraph=True)
    assert same(compiled(X), overlapped(X))
    with torch.profiler.profile() as seen:
        compiled(X)
    names = [event.name for event in seen.events()]
    steps = [name for name in names if name.startswith("c10d::") or name in ("aten::cumsum", "waits")]
    assert steps == ["c10d::allreduce_", "aten::cumsum", "c10d::allreduce_", "waits", "waits"]


def functional(x: Any) -> Any:
    group = dist.group.WORLD
    total = fc.all_reduce(x * 2, "sum", group)
    rows = fc.all_to_all_single(total, None, None, group) * fc.broadcast(x + 1, 0, group)
    first, second = fc.all_reduce_coalesced([x * 3, x + 2], "sum", group)
    return fc.wait_tensor(rows) * first + second


def functional_of_a_mesh(x: Any) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fc.all_reduce(x * 2, "sum", mesh) + fc.all_reduce(x, "sum", (mesh, 0))


def with_gradients(x: Any) -> Any:
    return torch.cat(nnf.all_gather(x * 2)) * nnf.broadcast(x + 1, 0) * nnf.scatter([x * 3], 0)


def exchanged_lists(x: Any) -> Any:
    out = [torch.empty_like(x)]
    dist.all_to_all(out, [x.detach() * 2])
    return out[0] * x


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (4, 1)])
@pytest.mark.parametrize("fn", [functional, with_gradients, exchanged_lists], ids=lambda fn: fn.__name__)
@pytest.mark.filterwarnings("ignore")
def test_functional_ones_are_one_graph_with_eagers_gradients(fn: Any, shape: tuple[int, ...]) -> None:
    """Also of the operators that copy and write: eager's autograd sees the copy."""
    found = []
    for call in (fn, smelt.compile(fn, fullgraph=True)):
        x = (torch.ones(shape) * 3).requires_grad_()
        y = call(x)
        y = y.wait() if isinstance(y, fc.AsyncCollectiveTensor) else y
        y.square().sum().backward()
        found.append((y.detach(), x.grad))
    assert same(found[1], found[0])


@pytest.mark.filterwarnings("ignore")
def test_groups_of_functional_ones_may_be_meshes() -> None:
    """A mesh is made outside of graphs."""
    assert same(smelt.compile(functional_of_a_mesh)(X), functional_of_a_mesh(X) + 0)


@pytest.mark.filterwarnings("ignore")
def test_a_functional_result_that_leaves_is_a_plain_tensor() -> None:
    found = smelt.compile(lambda x: fc.all_reduce(x * 2, "sum", dist.group.WORLD), fullgraph=True)(X)
    assert type(found) is torch.Tensor and same(found, X * 2)
