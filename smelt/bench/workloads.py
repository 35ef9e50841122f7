"""What the bench measures: a workload builds a model, makes its inputs and knows its loss.

A workload is data. The registry here holds the named models of the README table and tiny ones for tests;
`find_workload` is the one place where a name becomes a workload.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from smelt.base.errors import SmeltError, unknown_name
from smelt.bench.torchvision_schemas import define_torchvision_schemas


@dataclass(frozen=True)
class Batch:
    """One batch: `model(*args, **kwargs)`, and the target where the loss stands outside of the model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    target: Tensor | None = None

    def to(self, target: torch.device | torch.dtype) -> Batch:
        """The batch on another device, or with its floating point tensors in another dtype."""

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value if isinstance(target, torch.dtype) and not value.is_floating_point() else value.to(target)

        return Batch(*pytree.tree_map(move, (self.args, dict(self.kwargs), self.target)))


@dataclass(frozen=True)
class Workload:
    """One row of a benchmark. `build` and `batch` draw from torch's seeded generator."""

    name: str
    suite: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[Any, Batch], Tensor]
    needs: tuple[str, ...] = ()
    shape: str = ""

    def missing(self) -> list[str]:
        """The packages that this workload needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


class MissingPackages(SmeltError):
    """A workload's optional packages are not installed: its row is skipped, not failed."""


def own_loss(output: Any, batch: Batch) -> Tensor:
    """The loss that a Hugging Face model computes itself when it gets labels."""
    return output.loss


def classification_loss(output: Any, batch: Batch) -> Tensor:
    """Cross entropy of class scores against the batch's target."""
    assert batch.target is not None
    return F.cross_entropy(output, batch.target)


def transformers_model(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """A builder of a Hugging Face model with random weights; settings go to its config class."""

    def build() -> nn.Module:
        define_torchvision_schemas()
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


def timm_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A builder of a timm model with random weights."""

    def build() -> nn.Module:
        define_torchvision_schemas()
        import timm

        return timm.create_model(name, pretrained=False, **settings)

    return build


def token_batch(batch: int, length: int, vocabulary: int, classes: int | None = None) -> Callable[[], Batch]:
    """Token ids of shape (batch, length); labels are classes of shape (batch,), or the tokens themselves."""

    def make() -> Batch:
        tokens = torch.randint(0, vocabulary, (batch, length))
        labels = tokens.clone() if classes is None else torch.randint(0, classes, (batch,))
        return Batch(kwargs={"input_ids": tokens, "labels": labels})

    return make


def image_batch(batch: int, size: int, classes: int, channels: int = 3) -> Callable[[], Batch]:
    """Images of shape (batch, channels, size, size) and target classes of shape (batch,)."""

    def make() -> Batch:
        images = torch.randn(batch, channels, size, size)
        return Batch(args=(images,), target=torch.randint(0, classes, (batch,)))

    return make


def tiny_mlp() -> nn.Module:
    """Products, a normalisation, dropout and an activation."""
    layers = nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)
    return nn.Sequential(*layers)


def tiny_conv() -> nn.Module:
    """A convolution with batch statistics, which forward changes."""
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *head)


def vector_batch() -> Batch:
    """Vectors of shape (8, 16) and target classes of shape (8,)."""
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


def find_workload(name: str) -> Workload:
    """The workload of that name.

    Raises:
        OptionError: no such name (lists all and the nearest).
        MissingPackages: it needs packages that are not installed.
    """
    if name not in WORKLOADS:
        raise unknown_name("model", name, WORKLOADS)
    workload = WORKLOADS[name]
    if missing := workload.missing():
        raise MissingPackages(f"{name} needs {', '.join(missing)}", hint=f"pip install {' '.join(missing)}")
    return workload


def without_dropout(model: nn.Module) -> bool:
    """Set every dropout probability of `model` to zero, in place; True if there was one above zero.

    Covers dropout modules and the float attributes (of modules and of their config) that libraries hand to
    functional dropout and attention.
    """
    found = False
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found |= module.p > 0
            module.p = 0.0
        for owner in (module, getattr(module, "config", None)):
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if _is_dropout(name) and isinstance(value, float) and value > 0:
                    setattr(owner, name, 0.0)
                    found = True
    return found


def wake_parameters(model: nn.Module, deviation: float = 0.05) -> int:
    """Give parameters that start at (nearly) zero small normal values, in place; how many there were.

    Libraries start some layers at zero: the last gain of a residual block, a head, biases. No gradient flows through
    them, so a comparison of gradients would see nothing behind them. Draws from torch's seeded generator.
    """
    asleep = [parameter for parameter in model.parameters() if parameter.numel() and parameter.abs().max() < 1e-3]
    with torch.no_grad():
        for parameter in asleep:
            parameter.normal_(0.0, deviation)
    return len(asleep)


def _is_dropout(name: str) -> bool:
    return "dropout" in name or "pdrop" in name or name in ("drop_prob", "drop_path", "drop_rate", "attn_drop")


@dataclass(frozen=True)
class Settings:
    """How a workload is run; the same for every contender of a row."""

    train: bool = True
    precision: str = "fp32"
    device: str = "cpu"
    mode: str | None = None
    dynamic: bool | None = None
    seed: int = 0
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


PRECISIONS = ("fp32", "amp")
"""fp32, or bfloat16 autocast around the forward pass."""
