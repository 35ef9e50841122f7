"""transformers' Trainer with `torch_compile=True` trains through smelt once it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import smelt


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    smelt.uninstall()
    yield
    smelt.uninstall()
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": (torch.arange(10) * (i + 1)) % 50, "labels": torch.tensor(i % 2)}


def trained(folder: Path, compiled: bool, resume: str | None = None, **more: Any) -> tuple[list[float], Trainer]:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=8, num_train_epochs=2, torch_compile=compiled, report_to=[],
        logging_steps=1, use_cpu=True, disable_tqdm=True, learning_rate=1e-2, **{"save_strategy": "no", **more},
    )  # fmt: skip
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Rows())
    trainer.train(resume_from_checkpoint=resume)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer


@pytest.mark.parametrize("more", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}], ids=str)
def test_losses_are_those_of_eager(tmp_path: Path, more: dict[str, Any]) -> None:
    want, _ = trained(tmp_path, False, **more)
    smelt.install()
    got, trainer = trained(tmp_path, True, **more)
    stats = smelt.stats()
    assert got == pytest.approx(want, rel=3e-2 if more.get("bf16") else 1e-3) and len(got) > 2
    assert 0 < stats["graphs"] <= 3 and stats["breaks"] == stats["fallbacks"] == 0
    assert smelt.is_compiled(trainer.model_wrapped)
    trainer.model.save_pretrained(str(tmp_path / "saved"))
    again = BertForSequenceClassification.from_pretrained(str(tmp_path / "saved"))
    torch.testing.assert_close(dict(again.state_dict()), dict(trainer.model.state_dict()))


def test_a_run_goes_on_from_a_checkpoint_as_without_a_break(tmp_path: Path) -> None:
    smelt.install()
    saving = {"save_strategy": "steps", "save_steps": 2, "max_grad_norm": 0.5, "lr_scheduler_type": "linear"}
    whole, trainer = trained(tmp_path / "run", True, **saving)
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    state = torch.load(f"{checkpoint}/optimizer.pt", weights_only=True)["state"]
    assert state and whole[2] != whole[0]
    for compiled in (True, False):
        smelt.reset()
        losses, again = trained(tmp_path / "run", compiled, resume=checkpoint, **saving)
        assert losses == pytest.approx(whole, rel=1e-6 if compiled else 1e-3)  # the log holds those of before, too
        want, got = dict(trainer.model.state_dict()), dict(again.model.state_dict())
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
