"""The models of `smelt bench distributed`: two Llamas, and every model of `smelt bench`."""

from __future__ import annotations

from functools import partial

from smelt.bench.losses import own_loss
from smelt.bench.regional.models import Decoder
from smelt.bench.workload import Workload
from smelt.bench.workloads import find_workload, token_batch


def llama(name: str, decoder: Decoder, batch: int, length: int, shape: str) -> Workload:
    """Returns the workload that trains a Llama without a key cache on `batch` sequences of `length` tokens per rank."""
    build = partial(decoder.build, use_cache=False)
    tokens = token_batch(batch, length, decoder.vocabulary)
    return Workload(
        name, "distributed", build, tokens, own_loss, ("transformers",), f"{shape}, {batch}x{length} tokens a rank"
    )


LLAMAS = {
    each.name: each
    for each in (
        llama("llama-246m", Decoder(14, 1024, 16, 16, 2816, 32000), 8, 1024, "Llama of 245 million parameters"),
        llama("llama-tiny", Decoder(2, 32, 2, 2, 64, 100), 2, 8, "Llama of width 32"),
    )
}


def find_model(name: str, device: str) -> Workload:
    """Returns the workload of that name; models of the suites have their small size on a CPU and the published one on a
    GPU.

    Raises:
        OptionError: no workload has the name (the message lists the nearest names).
        MissingPackages: the workload needs packages that are not installed.
    """
    return LLAMAS[name] if name in LLAMAS else find_workload(name, "full" if device.startswith("cuda") else "cpu")
