"""Momentum Contrast (He, Fan, Wu, Xie, Girshick: Momentum Contrast for Unsupervised Learning, 2019), version 1.

As in the original, one forward contains collectives in a process group (`all_gather`, `broadcast`; here a group of one
process), a random shuffle, an assignment of new data to the key encoder's parameters, and an in-place write to a queue
at a position that Python reads from a tensor; the whole is inside `DistributedDataParallel`. Two calls give different
results even with the same seed, since the position in the queue has changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from smelt.bench.torchvision_schemas import define_torchvision_schemas

CPU = {"encoder": "resnet18", "features": 128, "queue": 4096, "momentum": 0.999, "temperature": 0.07}
FULL = {"encoder": "resnet50", "features": 128, "queue": 32000, "momentum": 0.999, "temperature": 0.07}


class MomentumContrast(nn.Module):
    """Scores each query against its own key and against a queue of earlier keys.

    The inputs are two views of the images, (batch, 3, h, w) each; the batch size divides the queue's length. The
    outputs are logits (batch, 1 + queue), with that of the query's own key first, and labels (batch,), which are all
    zero.
    """

    queue: torch.Tensor
    queue_position: torch.Tensor

    def __init__(self, encoder: nn.Module, features: int, queue: int, momentum: float, temperature: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.temperature = temperature
        self.encode_query = encoder
        self.encode_key = copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(features, queue), dim=0))
        self.register_buffer("queue_position", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        """Move the key encoder a little towards the query encoder, by giving its parameters new data."""
        pairs = zip(self.encode_query.parameters(), self.encode_key.parameters(), strict=True)
        for query, key in pairs:
            key.data = key.data * self.momentum + query.data * (1.0 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor) -> None:
        """Overwrite the oldest keys by those of all processes, (batch, features)."""
        keys = gather(keys)
        batch, length = keys.shape[0], self.queue.shape[1]
        position = int(self.queue_position)
        if length % batch != 0:
            raise ValueError(f"the queue's length {length} is no multiple of the batch {batch}")
        self.queue[:, position : position + batch] = keys.T
        self.queue_position[0] = (position + batch) % length

    @torch.no_grad()
    def keys(self, image: torch.Tensor) -> torch.Tensor:
        """Returns normalized keys (batch, features), encoded in shuffled order so that batch norm leaks no
        information.
        """
        images = gather(image)
        processes = images.shape[0] // image.shape[0]
        shuffled = torch.randperm(images.shape[0], device=image.device)
        dist.broadcast(shuffled, src=0)
        mine = shuffled.view(processes, -1)[dist.get_rank()]
        keys = nn.functional.normalize(self.encode_key(images[mine]), dim=1)
        mine = shuffled.argsort().view(processes, -1)[dist.get_rank()]
        return gather(keys)[mine]

    def forward(self, query_image: torch.Tensor, key_image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = nn.functional.normalize(self.encode_query(query_image), dim=1)
        with torch.no_grad():
            self.follow()
            key = self.keys(key_image)
        same = torch.einsum("nc,nc->n", query, key).unsqueeze(-1)
        other = torch.einsum("nc,ck->nk", query, self.queue.clone().detach())
        logits = torch.cat([same, other], dim=1) / self.temperature
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self.enqueue(key)
        return logits, labels


class MovableDataParallel(DistributedDataParallel):
    """Data parallel that can change device and dtype, which the original, fixed to one GPU, does not need."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.__setstate__(self.__getstate__())  # as after unpickling: new buckets for the gradients
        return self


@torch.no_grad()
def gather(x: torch.Tensor) -> torch.Tensor:
    """Concatenate the tensors (batch, ...) of all processes to (processes * batch, ...), without gradients."""
    gathered = [torch.ones_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, x, async_op=False)
    return torch.cat(gathered, dim=0)


def build(encoder: str, features: int, queue: int, momentum: float, temperature: float) -> nn.Module:
    """Build the model in data parallel; starts a group of one process (gloo, no network) unless a group exists."""
    define_torchvision_schemas()
    import torchvision

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    network = torchvision.models.get_model(encoder, weights=None, num_classes=features)
    return MovableDataParallel(MomentumContrast(network, features, queue, momentum, temperature))
