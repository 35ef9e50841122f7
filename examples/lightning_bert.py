"""Lightning trains a small BERT on text: `smelt run examples/lightning_bert.py`. It knows nothing of smelt.

Words of Python's own help pages are masked and guessed. `--eager` leaves compiling out, `--tiny` takes a smaller model
and fewer steps; `--compare` runs both in turn and prints their loss curves and times of a step.
"""

import time

import lightning
import torch
from bert_text import BATCH, prepared, run


class Masked(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.losses, self.seconds = [], []

    def training_step(self, batch, index):
        loss = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def on_train_batch_start(self, batch, index):
        self.begin = time.perf_counter()

    def on_train_batch_end(self, outputs, batch, index):
        self.seconds.append(time.perf_counter() - self.begin)
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(size: str, compiled: bool) -> tuple[list[float], list[float]]:
    bert, rows, collate = prepared(size)
    data = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, collate_fn=collate)
    module = Masked(bert)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(torch.compile(module) if compiled else module, data)
    return module.losses, module.seconds


run(__file__, train)
