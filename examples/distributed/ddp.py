"""DistributedDataParallel in a plain loop: `torchrun --nproc-per-node 2 examples/distributed/ddp.py`.

Gradients are reduced while the compiled backward goes on, which hands them out in stages.
"""

from argparse import Namespace

import torch
from digits import Reader, batches, print_losses, run, save
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import smelt


def train(options: Namespace, device: torch.device) -> None:
    model = DistributedDataParallel(Reader().to(device))
    if not options.eager:
        model = smelt.compile(model)  # the one line; DistributedDataParallel(smelt.compile(net)) works as well
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
