"""DeepSpeed ZeRO: `torchrun --nproc-per-node 2 examples/distributed/deepspeed_zero.py` (`pip install deepspeed`).

`--stage` 1 shares the optimizer's state among the run, 2 the gradients too, 3 the parameters too. Under stage 3
a graph ends at each layer, before which DeepSpeed gathers its parameters: its hooks are not captured.
"""

from argparse import Namespace

import deepspeed
import torch
from digits import BATCH, Reader, batches, print_losses, run
from torch.nn.functional import cross_entropy

import smelt


def train(options: Namespace, device: torch.device) -> None:
    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {
            "stage": int(options.stage or 1),
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's own would be compiled first
    }
    model = Reader().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    compiled = engine if options.eager else smelt.compile(engine)
    losses = []
    for images, labels in batches(device, 0, options.steps):
        loss = cross_entropy(compiled(images), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    print_losses(losses)
    if options.checkpoint:
        engine.save_16bit_model(options.checkpoint, "pytorch_model.bin")  # in the type of the parameters


if __name__ == "__main__":
    run(train, stage="1, 2 or 3 (default: 1)")
