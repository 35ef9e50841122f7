"""The inputs of a graph that its random numbers follow from: one seed for each device that draws."""

from __future__ import annotations

from torch import fx


def seed_name(k: int) -> str:
    """The name of the k-th such input."""
    return f"seed_{k}" if k else "seed"


def is_seed(node: fx.Node) -> bool:
    """Whether an input of a joint graph is one."""
    return node.op == "placeholder" and str(node.target).partition("_")[0] == "seed"
