"""Lightning trains a compiled model, on handwritten digits."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smelt

digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
        self.losses = []

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs, batch, index):
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


torch.manual_seed(0)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(smelt.compile(model), DataLoader(data, batch_size=64, drop_last=True))
print(f"loss {model.losses[0]:.3f} to {model.losses[-1]:.3f} with {smelt.stats()['graphs']} graph")
assert model.losses[-1] < model.losses[0] / 2 and smelt.stats()["graphs"] == 1
