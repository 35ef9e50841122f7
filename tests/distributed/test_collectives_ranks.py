"""Collectives and sharded modules in compiled code on two gloo processes: each check runs on both, in one spawn."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.nn.functional as nnf
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.graph.ir.schema import depends_on_strides

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
WORLD = 2
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
"""Loops sum in another order than PyTorch's kernels."""


class Reduce(torch.autograd.Function):
    """Megatron's way out of a parallel region."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class Enter(torch.autograd.Function):
    """Megatron's way in."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, dist.ReduceOp.MAX)
        return grad


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        found = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(found, x.contiguous())
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        own = grad.new_empty(grad.shape[0] // WORLD, *grad.shape[1:])
        dist.reduce_scatter_tensor(own, grad.contiguous())
        return own


class GatherWhole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        whole = x.new_empty(WORLD * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return Gather.backward(ctx, grad)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return Exchange.forward(ctx, grad)


class Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.clone()
        dist.broadcast(y, 1)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 3


class Wait(torch.autograd.Function):
    """What no graph holds: a handle, and a barrier."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.clone()
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        dist.barrier()
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        dist.barrier()
        return grad


def megatron(x: Any) -> Any:
    return Reduce.apply(torch.relu(Enter.apply(x) * 2)) * x


def functions(x: Any) -> Any:
    return Gather.apply(x * 2) * Send.apply(x).sum(), GatherWhole.apply(x) * 3, Exchange.apply(x * x)


def waits(x: Any) -> Any:
    return Wait.apply(x * 2) * x


def saved(x: Any) -> Any:
    """Eager's operators count no write: the backward reads what was reduced."""
    total = x * 2
    product = total * total.detach()
    dist.all_reduce(total)
    return product * total


def scattered(x: Any) -> Any:
    own = x.new_empty(x.shape[0] // WORLD, *x.shape[1:])
    dist.reduce_scatter_tensor(own, (x.detach() * 3).contiguous(), dist.ReduceOp.SUM)
    swapped = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(swapped, (x * 2).contiguous())
    return own + 1, swapped + x


def recorded(x: Any) -> Any:
    """Gloo computes it with operators that autograd follows, so eager has a gradient here."""
    own = x.new_empty(x.shape[0] // WORLD, *x.shape[1:])
    dist.reduce_scatter_tensor(own, (x * 3).contiguous())
    return own * 2


def gathered(x: Any) -> Any:
    whole = x.new_empty(WORLD * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.detach().contiguous())
    return whole.view(WORLD, *x.shape).sum(0) * x


def rooted(x: Any) -> Any:
    """One process gives or gets; the others have no list."""
    here = dist.get_rank() == 1
    y, own = x * 2, torch.zeros_like(x).contiguous()
    found = [torch.zeros_like(own) for _ in range(WORLD)] if here else None
    dist.reduce(y, dst=0)
    dist.gather((x * 3).contiguous(), found, dst=1)
    dist.scatter(own, found, src=1)
    dist.barrier()
    total = x + 1
    work = dist.all_reduce(tensor=total, group=dist.group.WORLD, async_op=True)
    later = x * 5
    work.wait()
    return y * x, own + later, total * x


def unequal(x: Any) -> Any:
    """Rank r gives r + 1 rows to rank 0 and two to rank 1."""
    rank, rows = dist.get_rank(), x.detach().reshape(-1)[:1]
    given, got = [rank + 1, 2], [1, 2] if rank == 0 else [2, 2]
    out = x.new_zeros(sum(got))
    dist.all_to_all_single(out, rows.new_ones(sum(given)) * (rank + 1), got, given)
    return out.sum() * x


def functional(x: Any) -> Any:
    """Functional collectives, along rows and columns, and some with gradients; lists."""
    group, rank = dist.group.WORLD, dist.get_rank()
    rows = fc.all_gather_tensor(x * 2, 0, group).sum(0) + fc.reduce_scatter_tensor(x * 3, "sum", 1, group).sum()
    shared = nnf.all_gather(x * x)[0] * fc.broadcast(x + 1, 1, group)
    given = [x.detach() * (1 + 2 * rank + other) for other in range(WORLD)]
    got = [torch.empty_like(each) for each in given]
    dist.all_to_all(got, given)
    return fc.all_reduce(x, "sum", group) * rows, shared * torch.cat(got).sum()


def one_sided(x: Any) -> Any:
    """Each process reads another result: both take part in all."""
    y, z = x * 2, x + 3
    dist.all_reduce(y)
    dist.broadcast(z, 1)
    return (y if dist.get_rank() else z) * x


def test_collectives_get_what_the_program_made_contiguous() -> None:
    """They move memory; some refuse other strides, some releases of PyTorch make a copy."""
    assert all(
        depends_on_strides(getattr(torch.ops._c10d_functional, name).default) for name in ("all_reduce", "broadcast")
    )


def _run(call: Callable[..., Any], x: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    found = call(x)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    sum((result * result).sum() for result in results).backward()
    return [*(result.detach() for result in results), x.grad]


def _one_graph(fn: Callable[..., Any], x: Any, graphs: int | None = 1) -> None:
    smelt.reset()
    torch.testing.assert_close(_run(smelt.compile(fn), x), _run(fn, x), **CLOSE)
    if graphs is not None:
        stats = smelt.stats()
        assert (stats["graphs"], stats["breaks"]) == (graphs, 0), (fn.__name__, stats["break_reasons"])


def collectives(rank: int) -> None:
    x = torch.arange(24.0).reshape(4, 6).sin() * (rank + 1)
    for given in (x, x[:2].t().contiguous().t()):
        for fn in (megatron, functions, saved, scattered, gathered, rooted, unequal, one_sided, functional):
            _one_graph(fn, given)
    for given in (x[:1, :1], x[:0]):
        for fn in (rooted, one_sided):
            _one_graph(fn, given)
    for fn in (waits, recorded):
        _one_graph(fn, x, graphs=None)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _sharded(compiled: bool, recomputed: bool, sizes: tuple[int, ...] = (WORLD,)) -> Any:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model: Any = nn.Sequential(Block(), Block())
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
    for k, block in enumerate(model):
        model[k] = fully_shard(checkpoint_wrapper(block) if recomputed else block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if compiled:
        for k, block in enumerate(model):
            model[k] = smelt.compile(block)
    return model


def _steps(model: Any, rank: int) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(24.0).reshape(3, 8).cos() * (rank + 1)
    model[0].set_modules_to_forward_prefetch([model[1]])
    losses = []
    for last in (False, True, True):
        for block in model:
            block.set_requires_gradient_sync(last)
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        if last:
            optimizer.step()
            optimizer.zero_grad()
    model[0].unshard()
    model[0].reshard()
    return [*losses, *(p.full_tensor().detach() for p in model.parameters())]


def sharded(rank: int) -> None:
    """Blocks that `fully_shard` has wrapped, compiled one by one: their methods work, each step equals eager's."""
    for recomputed in (False, True):
        smelt.reset()
        got = _steps(_sharded(True, recomputed), rank)
        stats = smelt.stats()
        assert stats["graphs"] > 0 and stats["fallbacks"] == 0
        torch.testing.assert_close(got, _steps(_sharded(False, recomputed), rank), **CLOSE)
    got = _steps(_sharded(True, False, (WORLD, 1)), rank)  # parameters of each process are replicated
    torch.testing.assert_close(got, _steps(_sharded(False, False, (WORLD, 1)), rank), **CLOSE)


def _pipelined(compiled: bool, rank: int) -> list[Any]:
    """Losses and parameters of a stage in a pipeline of torch."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    block = [Block() for _ in range(WORLD)][rank]
    stage = PipelineStage(smelt.compile(block) if compiled else block, rank, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, target: (y - target).square().mean())
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    losses: list[Any] = []
    for _ in range(2):
        x = torch.arange(64.0).reshape(8, 8).cos()
        inputs: tuple[Any, ...] = (x,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": x.sin(), "losses": losses} if rank == WORLD - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *(p.detach() for p in block.parameters())]


def pipelined(rank: int) -> None:
    """Compiled stages in a schedule of torch: one graph each, trained as in eager."""
    smelt.reset()
    got = _pipelined(True, rank)
    stats = smelt.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0)
    torch.testing.assert_close(got, _pipelined(False, rank), **CLOSE)


def _rank(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    try:
        collectives(rank)
        sharded(rank)
        pipelined(rank)
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients of both processes are those of eager; what a graph can hold is one graph."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port,), nprocs=WORLD)
