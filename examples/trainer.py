"""transformers' Trainer fine-tunes a small BERT on text: `smelt run examples/trainer.py`. It knows nothing of smelt.

The text is that of Python's own help pages; masked letters are guessed. `--eager` leaves compiling out. The losses are
printed, one a line.
"""

import sys
import tempfile
from pydoc_data.topics import topics

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

LENGTH, MASK = 64, 127
text = "".join(topics[name] for name in sorted(topics))[: 96 * LENGTH].encode("ascii", "replace")
rows = torch.tensor(list(text)).reshape(-1, LENGTH)
hidden = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.15


class Masked(torch.utils.data.Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, i):
        labels = torch.where(hidden[i], rows[i], -100)
        return {"input_ids": torch.where(hidden[i], MASK, rows[i]), "labels": labels}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, num_train_epochs=1, logging_steps=1, learning_rate=2e-3, use_cpu=True,
        torch_compile="--eager" not in sys.argv, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(BertForMaskedLM(config), arguments, train_dataset=Masked())
    trainer.train()
print("losses", *(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
