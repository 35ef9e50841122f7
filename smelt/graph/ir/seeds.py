"""Seeds as inputs of a graph: one for each device on which random numbers are drawn, which determines all of them."""

from __future__ import annotations

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta

aten = torch.ops.aten

FROM_SEEDS = frozenset(
    {
        aten.native_dropout.default,
        aten.bernoulli.p,
        aten.bernoulli.default,
        aten.rand.default,
        aten.rand_like.default,
        aten.uniform.default,
        aten.randn.default,
        aten.randn_like.default,
        aten.normal_functional.default,
        aten.exponential.default,
    }
)
"""Operators whose decompositions always use the seed; others may run in eager and draw from torch's generator."""


def seed_name(k: int) -> str:
    """Returns the name of the k-th seed input."""
    return f"seed_{k}" if k else "seed"


def is_seed(node: fx.Node) -> bool:
    """Whether an input of a joint graph is a seed."""
    return node.op == "placeholder" and str(node.target).partition("_")[0] == "seed"


def is_mixed(graph: fx.Graph) -> bool:
    """Whether some values of a graph are on a GPU and others on the CPU."""
    devices: set[torch.device] = set()
    for node in graph.nodes:
        meta = node.meta.get("val")
        if type(meta) is TensorMeta:
            devices.add(meta.device)
        else:
            devices |= devices_of(node)
    kinds = {device.type for device in devices}
    return "cpu" in kinds and len(kinds) > 1


def devices_of(node: fx.Node) -> set[torch.device]:
    """Returns the devices of the results of a node."""
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (tuple, list)) else (meta,)
    return {one.device for one in metas if isinstance(one, TensorMeta)}
