"""transformers' Trainer trains a small BERT on text: `smelt run examples/trainer.py`. It knows nothing of smelt.

Words of Python's own help pages are masked and guessed. `--eager` leaves compiling out, `--tiny` takes a smaller model
and fewer steps; `--compare` runs both in turn and prints their loss curves and times of a step.
"""

import tempfile
import time

from bert_text import BATCH, prepared, run
from transformers import Trainer, TrainerCallback, TrainingArguments


class Clock(TrainerCallback):
    """Times of whole steps, from the batch to the optimizer."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.begin = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.begin)


def train(size: str, compiled: bool) -> tuple[list[float], list[float]]:
    model, rows, collate = prepared(size)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, num_train_epochs=1, logging_steps=1, learning_rate=1e-3,
            use_cpu=True, torch_compile=compiled, report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[clock])
        trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry], clock.seconds


run(__file__, train)
