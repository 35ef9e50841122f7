"""PyTorch's default generators, whose states are restored if a graph that draws from them fails and its frame
is rerun.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from smelt.base.class_tables import isinstance


def drawn_from(nodes: Iterable[fx.Node]) -> tuple[torch.device, ...] | None:
    """The devices whose default generators these nodes draw from; None if the nodes may use other generators."""
    found: dict[torch.device, None] = {}
    for node in nodes:
        device = getattr(node.meta.get("val"), "device", None)
        if not isinstance(device, torch.device) or device.type not in ("cpu", "cuda") or _has_generator_argument(node):
            return None
        found[device] = None
    return tuple(found)


def _has_generator_argument(node: fx.Node) -> bool:
    """Whether one of the node's arguments is a generator."""
    if node.kwargs.get("generator") is not None:
        return True
    return any(isinstance(each, torch.Generator) for each in (*node.args, *node.kwargs.values()))


def default_generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """The default generators of the devices. Each device has one generator for the lifetime of the process."""
    return list(map(_default_generator, devices))


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
