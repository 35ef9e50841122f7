"""transformers' Trainer with DDP: `torchrun --nproc-per-node 2 examples/distributed/trainer_ddp.py`.

The Trainer compiles by `torch.compile`, which `smelt.install()` takes over.
"""

import tempfile
from argparse import Namespace

import torch
from digits import BATCH, Reader, data, print_losses, run
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

import smelt


class Learner(Reader):
    """Gives its loss, as the Trainer wants it."""

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": cross_entropy(super().forward(images), labels)}


class Losses(Trainer):
    """A Trainer that keeps the loss of each step of this process."""

    kept: list[torch.Tensor]

    def training_step(self, *args, **kwargs):
        self.kept.append(super().training_step(*args, **kwargs).detach())
        return self.kept[-1]


def train(options: Namespace, device: torch.device) -> None:
    if not options.eager:
        smelt.install()
    rows = [{"images": image, "labels": label} for image, label in data()]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, max_steps=options.steps, learning_rate=3e-3,
            lr_scheduler_type="constant", use_cpu=not torch.cuda.is_available(), torch_compile=not options.eager,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Losses(Learner(), settings, train_dataset=rows)
        trainer.kept = []
        trainer.train()
    print_losses(trainer.kept)
    if options.checkpoint:
        trainer.save_model(options.checkpoint)


if __name__ == "__main__":
    run(train, begin=False)
