"""The decoders of the table: Llamas with random weights, in sizes for two cores and in published sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from smelt.base.errors import unknown_name
from smelt.bench.builders import transformers_model


@dataclass(frozen=True)
class Decoder:
    """The sizes of a Llama: number of layers, width, query heads, key heads, and the inner width of a layer."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int

    def build(self, **settings: Any) -> nn.Module:
        """Build the model with random weights, in eval mode, as it is measured. `settings` go to its config, too."""
        config: dict[str, Any] = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            **settings,
        }
        return transformers_model("LlamaForCausalLM", "LlamaConfig", **config)().eval()


DECODERS = {
    "tiny": Decoder(2, 32, 2, 1, 64, 100),
    "8-layers": Decoder(8, 256, 4, 2, 1024, 8000),
    "32-layers": Decoder(32, 256, 4, 2, 1024, 8000),
    "64-layers": Decoder(64, 256, 4, 2, 1024, 8000),
    "1B": Decoder(16, 2048, 32, 8, 8192, 128256),
    "3B": Decoder(28, 3072, 24, 8, 8192, 128256),
    "8B": Decoder(32, 4096, 32, 8, 14336, 128256),
    "13B": Decoder(40, 5120, 40, 40, 13824, 32032),
}
"""Decoder by name; the last four are those of the published table."""

USUAL = {"cpu": ("8-layers", "32-layers"), "cuda": ("1B", "3B", "8B", "13B")}
"""Names of the decoders that are measured by default, by device."""


def find_decoder(name: str) -> Decoder:
    """Returns the decoder of that name.

    Raises:
        OptionError: no decoder has the name (the message lists all names).
    """
    if name not in DECODERS:
        raise unknown_name("model", name, tuple(DECODERS))
    return DECODERS[name]


def chosen_decoders(names: Sequence[str], device: str) -> list[str]:
    """Returns the given names without duplicates, or the defaults for the device.

    Raises:
        OptionError: a name is unknown.
    """
    chosen = list(dict.fromkeys(names)) or list(USUAL[device.partition(":")[0]])
    for name in chosen:
        find_decoder(name)
    return chosen
