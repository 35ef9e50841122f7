"""What each process of the tests of DDP runs: every way to wrap and to train, compiled and eager, and what differs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import smelt

CAP = 0.03
"""MiB of a bucket: the model below fills several."""

Told = dict[str, Any]


class Net(nn.Module):
    """Blocks, each larger than a bucket; the last one is skipped on request."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        for block in self.blocks[: len(self.blocks) - skip]:
            x = x + block(x)
        return x


Compile = Callable[[nn.Module], nn.Module]
INSIDE = {"inside": True, "outside": False}


def train(
    compiled: Compile | None,
    inside: bool,
    rank: int,
    *,
    hook: str = "",
    skip: bool = False,
    accumulate: bool = False,
    join: bool = False,
    empty: bool = False,
    norm: Callable[[int], nn.Module] = nn.LayerNorm,
    **settings: Any,
) -> tuple[list[float], list[torch.Tensor], list[torch.Tensor]]:
    """Losses, gradients of the last step and parameters of a few steps."""
    torch.manual_seed(0)
    smelt.reset()
    net = Net(norm)
    wrapped = compiled(net) if compiled is not None and inside else net
    ddp: nn.Module = DistributedDataParallel(wrapped, **{"bucket_cap_mb": CAP, **settings})
    inner = ddp
    if hook == "fp16":
        inner.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if compiled is not None and not inside:
        ddp = compiled(ddp)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=1e-3
    )  # larger ones diverge, and what is no number differs from nothing
    data = torch.Generator().manual_seed(rank)
    losses: list[float] = []
    gradients: list[torch.Tensor] = []
    with inner.join() if join else contextlib.nullcontext():
        for step in range(4 - rank if join else 4):
            x = torch.randn(0 if empty and rank == 1 and step == 2 else 8, 64, generator=data)
            with inner.no_sync() if accumulate and step % 2 == 0 else contextlib.nullcontext():
                loss = ddp(x, skip).square().sum()
                loss.backward()
            losses.append(loss.item())
            if not accumulate or step % 2:
                gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
                optimizer.step()
                optimizer.zero_grad()
            elif join:
                optimizer.zero_grad()
    return losses, gradients, [p.detach().clone() for p in net.parameters()]


# No PowerSGD: over gloo it ends processes in eager, too (its callbacks begin reductions from threads, in any order).
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "static_graph": {"static_graph": True},
    "find_unused": {"find_unused_parameters": True, "skip": True},
    "bucket_view": {"gradient_as_bucket_view": True},
    "no_sync": {"accumulate": True},
    "no_sync bucket_view": {"accumulate": True, "gradient_as_bucket_view": True},
    "fp16": {"hook": "fp16"},
    "join": {"join": True},
    "empty": {"empty": True},
}


def differs(one: Any, other: Any) -> float:
    """The largest difference of losses, gradients and parameters, by the size of what it is a difference of."""
    assert all(map(math.isfinite, (*one[0], *other[0]))), (one[0], other[0])
    most = max((abs(a - b) / max(1.0, abs(a)) for a, b in zip(one[0], other[0], strict=True)), default=0.0)
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.isfinite().all() and b.isfinite().all()
            most = max(most, ((a - b).abs().max() / a.abs().max().clamp(min=1e-3)).item())
    return most


def overlap(inside: bool, **options: Any) -> Told:
    """How many kernels of the backward had been launched when each bucket's reduction began, and how many there are."""
    torch.manual_seed(0)
    smelt.reset()
    net = Net()
    inner = DistributedDataParallel(smelt.compile(net, options=options) if inside else net, bucket_cap_mb=CAP)
    ddp = inner if inside else smelt.compile(inner, options=options)
    launched = 0
    begun: list[int] = []

    def reduce(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        begun.append(launched)
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal launched
        caller = frame if event == "c_call" else frame.f_back if event == "call" else None
        launched += caller is not None and caller.f_code.co_filename == "<smelt host program>"

    reduce.__annotations__.clear()  # DDP takes texts for wrong types
    inner.register_comm_hook(None, reduce)
    x = torch.randn(8, 64)
    for _ in range(3):  # DDP makes its buckets anew after the first one
        loss = ddp(x).square().sum()
        launched = 0
        begun.clear()
        sys.setprofile(watch)
        loss.backward()
        sys.setprofile(None)
    return {"begun": begun, "launched": launched}


def main() -> None:
    """Run all cases; rank 0 prints what all have found."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told: Told = {"stats": {}}
    for name, case in CASES.items():
        want = train(None, False, rank, **case)
        for way, inside in INSIDE.items():
            got = train(smelt.compile, inside, rank, **case)
            told[f"{name} {way}"] = differs(want, got)
            stats = smelt.stats()
            told["stats"][f"{name} {way}"] = [stats["graphs"], stats["breaks"], stats["fallbacks"]]
    told["overlap"] = {way: overlap(inside) for way, inside in INSIDE.items()}
    told["at the end"] = overlap(True, stages=0)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, told)
    if rank == 0:
        print("told", json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
