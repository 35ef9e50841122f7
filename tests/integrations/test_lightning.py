"""Lightning trains what smelt compiled as it trains the model in eager."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import smelt

L = pytest.importorskip("lightning")
compiles = pytest.importorskip("lightning.pytorch.utilities.compile")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


class Classifier(L.LightningModule):  # type: ignore[misc]
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        self.losses.append(outputs["loss"].detach().clone())

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("valid", nn.functional.cross_entropy(self(x), y))

    def predict_step(self, batch: Any, index: int) -> Tensor:
        return self(batch[0]).softmax(-1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Plain(Classifier):
    """Its step does not call the module."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=8)


def trainer(folder: Path, **kwargs: Any) -> Any:
    return L.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **kwargs,
    )  # fmt: skip


def trained(model: Any, folder: Path, **kwargs: Any) -> tuple[Any, Any]:
    made = trainer(folder, **kwargs)
    made.fit(model, data(), data())
    return torch.stack(model.losses), made


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    yield
    smelt.uninstall()


@pytest.mark.parametrize("way", ["compile", "regions", "install"])
@pytest.mark.parametrize("cls", [Classifier, Plain])
def test_losses_are_those_of_eager(way: str, cls: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    want, _ = trained(cls(), tmp_path)
    torch.manual_seed(0)
    module = cls()
    if way == "install":
        smelt.install()
        compiled = torch.compile(module)
    else:
        compiled = {"compile": smelt.compile, "regions": smelt.compile_regions}[way](module)
    got, made = trained(compiled, tmp_path)
    torch.testing.assert_close(got, want)
    stats = smelt.stats()
    assert len(got) == 6 and 1 <= stats["graphs"] <= 3 and stats["fallbacks"] == 0
    path = str(tmp_path / "model.ckpt")
    made.save_checkpoint(path)
    assert list(torch.load(path, weights_only=True)["state_dict"]) == list(module.state_dict())
    for each in (cls, type(compiled)):
        loaded = each.load_from_checkpoint(path)
        torch.testing.assert_close(dict(loaded.state_dict()), dict(module.state_dict()))
    (first, *_) = trainer(tmp_path).predict(compiled, data())
    torch.testing.assert_close(first, module.net(X[:8]).softmax(-1))


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    model = smelt.compile(Classifier())
    _, made = trained(model, tmp_path)
    path = str(tmp_path / "model.ckpt")
    made.save_checkpoint(path)
    again = smelt.compile(Classifier())
    further = trainer(tmp_path, enable_checkpointing=False)
    further.fit_loop.max_epochs = 3
    further.fit(again, data(), data(), ckpt_path=path)
    assert len(again.losses) == 3 and again.losses[-1] < model.losses[0]


def test_compiled_and_back() -> None:
    module = Classifier()
    compiled = smelt.compile(module, options={"recompile_limit": 3})
    steps = compiles.from_compiled(compiled)
    assert steps is module and smelt.is_compiled(module.training_step) and smelt.is_compiled(module.forward)
    assert module.training_step._smelt_session.options.recompile_limit == 3
    assert inspect.signature(module.training_step) == inspect.signature(Classifier().training_step)
    back = compiles.to_uncompiled(compiled)
    assert back is module and module._compiler_ctx is None and not smelt.is_compiled(module.training_step)
    assert compiles.to_uncompiled(smelt.compile(module)) is module
    for function in (compiles.from_compiled, compiles.to_uncompiled):
        with pytest.raises(ValueError):
            function(Classifier())


def test_fabric() -> None:
    fabric = L.Fabric(accelerator="cpu", devices=1)
    module = Plain()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    compiled, optimizer = fabric.setup(smelt.compile(module), optimizer)
    want = nn.functional.cross_entropy(module.net(X), Y)
    loss = nn.functional.cross_entropy(compiled(X), Y)
    fabric.backward(loss)
    optimizer.step()
    torch.testing.assert_close(loss, want)
    assert smelt.stats()["graphs"] == 1 and list(compiled.state_dict()) == list(module.state_dict())
