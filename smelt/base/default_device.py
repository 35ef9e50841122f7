"""Keeps the program's default device out of the compiler: smelt makes its own tensors on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx

MAKERS = frozenset(
    {torch.empty, torch.empty_permuted, torch.empty_strided, torch.ones, torch.zeros, torch.full, torch.eye}
    | {torch.arange, torch.range, torch.linspace, torch.logspace, torch.tril_indices, torch.triu_indices}
    | {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
    | {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.fft.fftfreq, torch.fft.rfftfreq}
    | {torch.bartlett_window, torch.blackman_window, torch.hamming_window, torch.hann_window, torch.kaiser_window}
)
"""Functions that make tensors on the default device unless a device argument is given."""


@contextmanager
def without_default_device() -> Iterator[None]:
    """Context that makes new tensors on the CPU, whatever default device the program has set."""
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield


def name_devices(gm: fx.GraphModule) -> None:
    """Add a device argument to each node of a captured graph that makes a tensor, if its result's device is known."""
    if torch.get_default_device().type == "cpu":
        return
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            device = getattr(node.meta.get("val"), "device", None)
            if node.target in MAKERS and node.kwargs.get("device") is None and device is not None:
                node.kwargs = {**node.kwargs, "device": device}
