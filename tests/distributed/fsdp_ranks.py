"""What each process of the tests of FSDP2 runs: every policy and every way to compile, against eager."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import smelt
from tests.distributed.ddp_ranks import differs

WIDTH, BLOCKS, STEPS = 32, 2, 3
Told = dict[str, Any]
Shard = Callable[[nn.Module], Any]


class Block(nn.Module):
    """A residual block of the kind that large models repeat."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v)) * scale


class CallingBlock(Block):
    """A block whose class has a `__call__` of its own around that of modules, as transformers' layers had."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("scale") is None:
            kwargs["scale"] = 1.0
        return super().__call__(*args, **kwargs)


class Net(nn.Module):
    """Blocks in a list, with layers before and after them."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def by_hand(net: Net, shard: Shard) -> nn.Module:
    """Each block is compiled, put back and sharded, as torchtitan does it."""
    for name, block in list(net.blocks.named_children()):
        compiled = smelt.compile(block)
        net.blocks.register_module(name, compiled)
        shard(compiled)
    shard(net)
    return net


def by_hand_after(net: Net, shard: Shard) -> nn.Module:
    """Each block is sharded first."""
    for name, block in list(net.blocks.named_children()):
        shard(block)
        net.blocks.register_module(name, smelt.compile(block))
    shard(net)
    return net


def regions(net: Net, shard: Shard) -> nn.Module:
    """`compile_regions`, and what it gives is sharded."""
    model: nn.Module = smelt.compile_regions(net)
    for block in model.blocks:
        shard(block)
    shard(model)
    return model


def whole(net: Net, shard: Shard) -> nn.Module:
    """The sharded model is compiled as one."""
    model: nn.Module = smelt.compile(eager(net, shard))
    return model


def eager(net: Net, shard: Shard) -> nn.Module:
    """Nothing is compiled."""
    for block in net.blocks:
        shard(block)
    shard(net)
    return net


WAYS = {"by hand": by_hand, "by hand, sharded first": by_hand_after, "regions": regions, "whole": whole}
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES: dict[str, dict[str, Any]] = {
    "reshard": {"reshard_after_forward": True},
    "no reshard": {"reshard_after_forward": False},
    "reshard to 2": {"reshard_after_forward": 2},
    "bf16": {"mp_policy": BF16},
    "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "accumulate": {"accumulate": True},
    "clip": {"clip": 0.1},
    "meta": {"meta": True},
    "checkpoint": {"block": lambda: checkpoint_wrapper(Block())},
    "calling": {"block": CallingBlock},
}
WAYS_OF_CASES = {
    "reshard": tuple(WAYS),
    "no reshard": ("by hand",),
    "reshard to 2": ("regions",),
    "bf16": ("regions",),
    "offload": ("by hand", "whole"),
    "accumulate": ("by hand",),
    "clip": ("regions",),
    "meta": ("by hand", "whole"),
    "checkpoint": ("by hand", "regions", "whole"),
    "calling": ("by hand", "regions"),
}
"""Each policy in some of the ways, each way under several policies: a training of each pair would take a minute."""


def train(
    wrap: Callable[[Net, Shard], nn.Module],
    rank: int,
    *,
    block: Callable[[], nn.Module] = Block,
    accumulate: bool = False,
    clip: float | None = None,
    meta: bool = False,
    **policy: Any,
) -> tuple[list[float], list[torch.Tensor], list[torch.Tensor]]:
    """Losses, gradients of the last step and parameters of a few steps."""
    smelt.reset()
    torch.manual_seed(0)
    with torch.device("meta" if meta else "cpu"):
        net = Net(block)
    model: Any = wrap(net, lambda module: fully_shard(module, **policy))
    if meta:
        model.to_empty(device="cpu")
        torch.manual_seed(1)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(rank)
    losses: list[float] = []
    gradients: list[torch.Tensor] = []
    for step in range(STEPS):
        last = not accumulate or step % 2 == 1
        model.set_requires_gradient_sync(last)
        loss = model(torch.randn(4, 8, WIDTH, generator=data)).square().mean()
        loss.backward()
        losses.append(loss.item())
        if last:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            gradients = [_whole(p.grad) for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
    return losses, gradients, [_whole(p) for p in model.parameters()]


def _whole(value: Any) -> torch.Tensor:
    assert isinstance(value, DTensor)
    return value.detach().to_local().clone()


def main() -> None:
    """Run all cases; rank 0 prints what all have found."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told: Told = {"stats": {}}
    for name, case in CASES.items():
        want = train(eager, rank, **case)
        for way in WAYS_OF_CASES[name]:
            told[f"{name}, {way}"] = differs(want, train(WAYS[way], rank, **case))
            stats = smelt.stats()
            told["stats"][f"{name}, {way}"] = [stats["graphs"], stats["breaks"], stats["fallbacks"]]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, told)
    if rank == 0:
        print("told", json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
