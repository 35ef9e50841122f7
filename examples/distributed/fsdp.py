"""FSDP2 by block: `torchrun --nproc-per-node 2 examples/distributed/fsdp.py`.

Each process keeps a share of each parameter. `compile_regions` makes one program for the equal blocks; FSDP gathers a
block's parameters before it runs, and frees them after it.
"""

from argparse import Namespace

import torch
from digits import Reader, batches, print_losses, run, save
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import smelt


def train(options: Namespace, device: torch.device) -> None:
    model = Reader().to(device)
    if not options.eager:
        model = smelt.compile_regions(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for images, labels in batches(device, 0, options.steps):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print_losses(losses)
    save(model, options.checkpoint)


if __name__ == "__main__":
    run(train)
