"""The configurations of transformers as subjects of the census: a small model of each, with inputs that it accepts."""

from __future__ import annotations

import importlib
import inspect
import itertools
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from smelt.bench.census.cheap_weights import CheapWeights
from smelt.bench.census.examine import SEED, Subject
from smelt.bench.census.hf_inputs import find_inputs
from smelt.bench.census.shorten import shorten
from smelt.bench.census.shrink import TRIED, Sizes, small_settings
from smelt.bench.workload import Batch

MODEL_SETTINGS: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "lfm2_moe": {"layer_types": ["full_attention", "conv", "full_attention", "conv"], "num_hidden_layers": 4},
}
"""Settings that no rule of `shrink` finds, by model type."""

HEADS = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
)
"""Mappings in which a model class is looked up first; the other mappings follow."""


def transformers_names() -> list[str]:
    """Returns every model type with a configuration class, in the library's order."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    first: dict[str, str] = {}
    for name, config in CONFIG_MAPPING_NAMES.items():
        first.setdefault(config, name)
    return list(first.values())


def transformers_subject(name: str) -> Subject:
    """Build the model type at the smallest size at which it runs.

    Raises:
        Exception: the model runs at no size; this is the error of the first size.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    model_class = find_class(name, config_class)
    first: Exception | None = None
    began = time.process_time()
    for sizes, short in itertools.product(TRIED, (True, False)):
        try:
            torch.manual_seed(SEED)
            model = build(config_class, model_class, sizes, MODEL_SETTINGS.get(name, {}))
            if short == (numbers(model) <= MIN_SHORTENED_PARAMETERS):
                continue  # a small model is not shortened, so it is tried once
            if short:
                shorten(model)
            given = find_inputs(model)
        except Exception as error:
            first = first or error
            if time.process_time() - began > PATIENCE_S:
                break
            continue
        shapes = ", ".join(f"{key} {'x'.join(map(str, value.shape))}" for key, value in given.items())
        return Subject(model, Batch(kwargs=given), model_class.__name__, shapes)
    assert first is not None
    raise first


def build(config_class: Any, model_class: Any, sizes: Sizes, odd: dict[str, Any]) -> nn.Module:
    """Build a small model with random weights, in eval mode."""
    settings = small_settings(config_class(**odd), sizes) | odd
    config = config_class(**settings)
    if not sizes.narrow and numbers(on_meta(model_class, config)) > LIMIT:
        raise MemoryError("more than 400 million parameters even at a small size")
    weights = CheapWeights()
    with weights:
        model = model_class(config)
    weights.fill(model)
    return model.float().eval()


PATIENCE_S = 20.0
"""Seconds of CPU time after which no further size is tried."""

MIN_SHORTENED_PARAMETERS = 4_000_000
"""Minimum number of parameters at which repeated blocks are removed first."""

LIMIT = 400_000_000
"""Maximum number of parameters; a larger model is left out."""


def numbers(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())


def on_meta(model_class: Any, config: Any) -> nn.Module:
    """Build the model on the meta device, without memory for its parameters, to count them."""
    with torch.device("meta"):
        try:
            return model_class(config)
        except (NotImplementedError, RuntimeError):  # the model reads values of tensors while it is built
            return nn.Module()


def find_class(name: str, config_class: Any) -> Any:
    """Returns the model class for a configuration: the base model if there is one, else a head, else any class of its
    module.

    Raises:
        LookupError: no model class takes the configuration.
    """
    found = _mapped_class(name)
    if found is not None:
        return found
    candidates = _classes_for(config_class)
    if not candidates:
        raise LookupError(f"no model class of transformers takes a {config_class.__name__}")
    return min(candidates, key=lambda model: (not model.__name__.endswith("Model"), len(model.__name__)))


def _mapped_class(name: str) -> Any:
    """Returns the class that the mappings of transformers' automatic classes have for a model type, or None."""
    import transformers
    from transformers.models.auto import modeling_auto

    others = [key for key in vars(modeling_auto) if key.endswith("_MAPPING_NAMES") and key not in HEADS]
    for mapping in (*HEADS, *others):
        found = getattr(modeling_auto, mapping, {}).get(name)
        found = found[0] if isinstance(found, (list, tuple)) else found
        model = getattr(transformers, found, None) if found else None
        if isinstance(model, type) and issubclass(model, nn.Module):
            return model
    return None


def _classes_for(config_class: Any) -> list[Any]:
    """Returns the model classes that take a configuration, from the modules in its package."""
    import transformers

    return [
        value
        for module in modeling_modules(config_class)
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, transformers.PreTrainedModel)
        and value.__module__ == module.__name__
        and getattr(value, "config_class", None) is config_class
        and not value.__name__.endswith("PreTrainedModel")
    ]


def modeling_modules(config_class: Any) -> list[ModuleType]:
    """Import the `modeling_*` modules in the package of a configuration."""
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    names = [file.stem for folder in package.__path__ for file in sorted(Path(folder).glob("modeling_*.py"))]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
