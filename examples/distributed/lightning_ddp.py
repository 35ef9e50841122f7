"""Lightning's Trainer with DDP: `torchrun --nproc-per-node 2 examples/distributed/lightning_ddp.py`."""

import os
from argparse import Namespace

import lightning
import torch
from digits import BATCH, Reader, data, print_losses, run
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import smelt


class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.reader = Reader()
        self.losses = []

    def training_step(self, batch, index):
        return cross_entropy(self.reader(batch[0]), batch[1])

    def on_train_batch_end(self, outputs, batch, index):
        self.losses.append(outputs["loss"].detach())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def train(options: Namespace, device: torch.device) -> None:
    model = Learner()
    trainer = lightning.Trainer(
        strategy=DDPStrategy(), accelerator="auto", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_steps=options.steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(data(), batch_size=BATCH, drop_last=True)
    trainer.fit(model if options.eager else smelt.compile(model), loader)
    print_losses(model.losses)
    if options.checkpoint:
        trainer.save_checkpoint(os.path.join(options.checkpoint, "learner.ckpt"))


if __name__ == "__main__":
    run(train, begin=False)
