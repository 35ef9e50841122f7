"""The models of `smelt bench distributed`: two Llamas, and every model that `smelt bench` measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from smelt.bench.builders import transformers_model
from smelt.bench.losses import own_loss
from smelt.bench.workload import Workload
from smelt.bench.workloads import find_workload, token_batch


def llama(layers: int, width: int, heads: int, inner: int, vocabulary: int) -> Callable[[], nn.Module]:
    """A builder of a Llama with random weights, without tied embeddings."""
    config: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "use_cache": False,
    }
    return transformers_model("LlamaForCausalLM", "LlamaConfig", **config)


LLAMAS = {
    "llama-246m": Workload(
        "llama-246m",
        "distributed",
        llama(14, 1024, 16, 2816, 32000),
        token_batch(8, 1024, 32000),
        own_loss,
        ("transformers",),
        "Llama of 245 million parameters, 8x1024 tokens a rank",
    ),
    "llama-tiny": Workload(
        "llama-tiny",
        "distributed",
        llama(2, 32, 2, 64, 100),
        token_batch(2, 8, 100),
        own_loss,
        ("transformers",),
        "Llama of width 32, 2x8 tokens a rank",
    ),
}


def find_model(name: str, device: str) -> Workload:
    """The workload of that name; models of the suites have their small size on a CPU and the published one on a GPU.

    Raises:
        OptionError: no such name (lists the nearest).
        MissingPackages: it needs packages that are not installed.
    """
    return LLAMAS[name] if name in LLAMAS else find_workload(name, "full" if device.startswith("cuda") else "cpu")
