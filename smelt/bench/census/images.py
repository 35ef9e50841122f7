"""The architectures of timm as subjects of the census: random weights, few blocks, the smallest images that run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from smelt.bench.census.cheap_weights import CheapWeights
from smelt.bench.census.examine import SEED, Subject
from smelt.bench.census.shorten import shorten
from smelt.bench.workload import Batch

SIZES = (64, 96, 128, 160, 192)
"""Edge lengths of images that are tried before the model's own."""


def timm_names() -> list[str]:
    """Returns every architecture that timm lists."""
    import timm

    return list(timm.list_models())


def timm_subject(name: str) -> Subject:
    """Build the architecture with the smallest images that it runs on, without repeated blocks if it runs without them.

    Raises:
        Exception: the architecture does not build or run; the error for its own image size is raised.
    """
    import timm

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    channels, *edges = (config.input_size if config else None) or (3, 224, 224)
    own = tuple(edges)
    sizes: list[tuple[int, ...]] = [*((size, size) for size in SIZES if size < min(edges)), own]
    fixed = bool(config and config.fixed_input_size)
    for short in (True, False):
        model: nn.Module | None = None
        for size in sizes:
            last = size == own and not short
            try:
                if model is None or fixed:
                    settings: dict[str, Any] = {"img_size": size} if fixed and size != own else {}
                    model = build(name, short, **settings)
                images = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(SEED))
                with torch.no_grad():
                    model.eval()(images)
                return Subject(model, Batch((images,)), family(model), "x".join(map(str, images.shape)))
            except Exception:
                if last:
                    raise
    raise AssertionError("the model's own size comes last")


def build(name: str, short: bool, **settings: Any) -> nn.Module:
    """Build the architecture with random weights."""
    import timm

    weights = CheapWeights()
    with weights:
        model = timm.create_model(name, pretrained=False, **settings)
    if short:
        shorten(model)
    weights.fill(model)
    return model


def family(model: nn.Module) -> str:
    """Returns the name of the file of the model's class: architectures of one file are variants of each other."""
    return type(model).__module__.rpartition(".")[2]
