"""A loop like torchtitan's: `torchrun --nproc-per-node 2 examples/distributed/titan.py --checkpoint FOLDER`.

The model is made on the meta device, its blocks are compiled one by one and sharded with a mesh of processes, and it
gets its parameters afterwards; gradients are clipped, the learning rate follows a schedule. A checkpoint of model,
optimizer and schedule is written halfway (`FOLDER/half`) and at the end; `--resume FOLDER/half` goes on from there,
compiled or not, on any number of processes.
"""

import os
from argparse import Namespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits import Reader, batches, print_losses, run
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

import smelt


class Training:
    """Model, optimizer and schedule, as torch.distributed.checkpoint saves and loads them."""

    def __init__(self, device: torch.device, eager: bool):
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        precision = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        with torch.device("meta"):
            self.model = Reader()
        for name, block in self.model.blocks.named_children():
            block = block if eager else smelt.compile(block, fullgraph=True)
            self.model.blocks.register_module(name, block)
            fully_shard(block, mesh=mesh, mp_policy=precision)
        fully_shard(self.model, mesh=mesh, mp_policy=precision)
        self.model.to_empty(device=device)
        for module in self.model.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1, (step + 1) / 4))

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(self.model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.detach()


def train(options: Namespace, device: torch.device) -> None:
    training = Training(device, options.eager)
    if options.resume:
        state = training.state_dict()
        dcp.load(state, checkpoint_id=options.resume)
        training.load_state_dict(state)
    losses, first = [], training.schedule.last_epoch
    for step, batch in enumerate(batches(device, first, options.steps), first + 1):
        losses.append(training.step(*batch))
        if options.checkpoint and step in (options.steps // 2, options.steps):
            name = "half" if step < options.steps else "end"
            dcp.save(training.state_dict(), checkpoint_id=os.path.join(options.checkpoint, name))
    print_losses(losses)


if __name__ == "__main__":
    run(train, resume="go on from this checkpoint")
