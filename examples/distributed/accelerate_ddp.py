"""Accelerate with DDP and `SmeltPlugin`: `torchrun --nproc-per-node 2 examples/distributed/accelerate_ddp.py`.

`accelerate launch --num_processes 2` starts it as well.
"""

from argparse import Namespace

import torch
from accelerate import Accelerator
from digits import BATCH, Reader, data, print_losses, run
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from smelt.integrations.accelerate import SmeltPlugin


def train(options: Namespace, device: torch.device) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dynamo_plugin=None if options.eager else SmeltPlugin())
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(data(), batch_size=BATCH, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, (images, labels) in zip(range(options.steps), loader, strict=False):
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print_losses(losses)
    if options.checkpoint:
        accelerator.save_model(model, options.checkpoint)


if __name__ == "__main__":
    run(train, begin=False)
