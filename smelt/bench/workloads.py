"""The named models of the README table and tiny ones for tests; `find_workload` returns the workload of a name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from smelt.base.errors import OptionError
from smelt.bench.builders import timm_model, transformers_model
from smelt.bench.losses import classification_loss, own_loss
from smelt.bench.suites.entries import entry_workload, known_entries
from smelt.bench.workload import Batch, MissingPackages, Workload


def token_batch(batch: int, length: int, vocabulary: int, classes: int | None = None) -> Callable[[], Batch]:
    """Returns a function that makes token ids of shape (batch, length); labels are classes of shape (batch,), or the
    tokens.
    """

    def make() -> Batch:
        tokens = torch.randint(0, vocabulary, (batch, length))
        labels = tokens.clone() if classes is None else torch.randint(0, classes, (batch,))
        return Batch(kwargs={"input_ids": tokens, "labels": labels})

    return make


def image_batch(batch: int, size: int, classes: int, channels: int = 3) -> Callable[[], Batch]:
    """Returns a function that makes images of shape (batch, channels, size, size) and target classes of shape
    (batch,).
    """

    def make() -> Batch:
        images = torch.randn(batch, channels, size, size)
        return Batch(args=(images,), target=torch.randint(0, classes, (batch,)))

    return make


def tiny_mlp() -> nn.Module:
    """Build a model with products, a normalisation, dropout and an activation."""
    layers = nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)
    return nn.Sequential(*layers)


def tiny_conv() -> nn.Module:
    """Build a convolution with batch statistics, which forward changes."""
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *head)


def vector_batch() -> Batch:
    """Make vectors of shape (8, 16) and target classes of shape (8,)."""
    return Batch(args=(torch.randn(8, 16),), target=torch.randint(0, 4, (8,)))


TINY_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}

WORKLOADS: dict[str, Workload] = {
    entry.name: entry
    for entry in (
        Workload(
            "bert",
            "named",
            transformers_model("BertForSequenceClassification", "BertConfig"),
            token_batch(4, 64, 30522, classes=2),
            own_loss,
            ("transformers",),
            "BERT-base classifier, 4x64 tokens",
        ),
        Workload(
            "gpt2",
            "named",
            transformers_model("GPT2LMHeadModel", "GPT2Config"),
            token_batch(2, 64, 50257),
            own_loss,
            ("transformers",),
            "GPT-2 language model, 2x64 tokens",
        ),
        Workload(
            "resnet50",
            "named",
            timm_model("resnet50"),
            image_batch(4, 128, 1000),
            classification_loss,
            ("timm",),
            "timm ResNet-50, 4x3x128x128",
        ),
        Workload(
            "vit",
            "named",
            timm_model("vit_base_patch16_224"),
            image_batch(2, 224, 1000),
            classification_loss,
            ("timm",),
            "timm ViT-B/16, 2x3x224x224",
        ),
        Workload("tiny-mlp", "tiny", tiny_mlp, vector_batch, classification_loss, (), "two layers, 8x16"),
        Workload("tiny-conv", "tiny", tiny_conv, image_batch(2, 8, 4), classification_loss, (), "one block, 2x3x8x8"),
        Workload(
            "tiny-bert",
            "tiny",
            transformers_model("BertForSequenceClassification", "BertConfig", vocab_size=100, **TINY_BERT),
            token_batch(2, 8, 100, classes=2),
            own_loss,
            ("transformers",),
            "BERT of width 32, 2x8 tokens",
        ),
    )
}
"""Workload by name."""


def find_workload(name: str, size: str = "cpu") -> Workload:
    """Returns the workload of a name: a named model, or an entry of the suites (`resnet18` or `torchbench/resnet18`).

    Args:
        size: `cpu` or `full`, for an entry of the suites.

    Raises:
        OptionError: the name (the message lists the nearest) or the size is unknown.
        MissingPackages: the workload needs packages that are not installed.
    """
    workload = known_workload(name, size)
    if missing := workload.missing():
        raise MissingPackages(f"{name} needs {', '.join(missing)}", hint=f"pip install {' '.join(missing)}")
    return workload


def known_workload(name: str, size: str = "cpu") -> Workload:
    """Returns the workload of that name, whether or not its packages are installed.

    Raises:
        OptionError: the name (the message lists the nearest) or the size is unknown.
    """
    suite, _, entry = name.rpartition("/")
    if entry in WORKLOADS and suite in ("", WORKLOADS[entry].suite):
        return WORKLOADS[entry]
    entries = known_entries()
    if entry not in entries or suite not in ("", entries[entry]["suite"]):
        raise _unknown_model(name, [*WORKLOADS, *entries])
    return entry_workload(entries[entry], size)


def _unknown_model(name: str, names: Sequence[str]) -> OptionError:
    by_letters = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.rpartition("/")[2].lower(), by_letters, n=5, cutoff=0.5)
    hint = f"did you mean {', '.join(repr(by_letters[each]) for each in near)}? " if near else ""
    return OptionError(
        f"unknown model {name!r}", hint=f"{hint}`smelt bench models` lists the {len(names)} that there are"
    )
