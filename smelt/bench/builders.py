"""Builders of models from their libraries, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from smelt.bench.torchvision_schemas import define_torchvision_schemas


def transformers_model(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Returns a builder of a Hugging Face model with random weights; `settings` go to its config class."""

    def build() -> nn.Module:
        define_torchvision_schemas()
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


def timm_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Returns a builder of a timm model with random weights; `settings` go to `timm.create_model`."""

    def build() -> nn.Module:
        define_torchvision_schemas()
        import timm

        return timm.create_model(name, pretrained=False, **settings)

    return build


def torchvision_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Returns a builder of a torchvision classification model with random weights; `settings` go to its constructor."""

    def build() -> nn.Module:
        define_torchvision_schemas()
        import torchvision

        return getattr(torchvision.models, name)(**settings)

    return build
