"""Makes a model comparable: no dropout, no parameter behind which every gradient is zero."""

from __future__ import annotations

import torch
from torch import nn


def without_dropout(model: nn.Module) -> bool:
    """Set every dropout probability of `model` to zero, in place; True if there was one above zero.

    Covers dropout modules and the float attributes (of modules and of their config) that libraries hand to
    functional dropout and attention.
    """
    found = False
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found |= module.p > 0
            module.p = 0.0
        for owner in (module, getattr(module, "config", None)):
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if _is_dropout(name) and isinstance(value, float) and value > 0:
                    setattr(owner, name, 0.0)
                    found = True
    return found


def wake_parameters(model: nn.Module, deviation: float = 0.05) -> int:
    """Give parameters that start at (nearly) zero small normal values, in place; how many there were.

    Libraries start some layers at zero: the last gain of a residual block, a head, biases. No gradient flows through
    them, so a comparison of gradients would see nothing behind them. Draws from torch's seeded generator.
    """
    asleep = [parameter for parameter in model.parameters() if parameter.numel() and parameter.abs().max() < 1e-3]
    with torch.no_grad():
        for parameter in asleep:
            parameter.normal_(0.0, deviation)
    return len(asleep)


def _is_dropout(name: str) -> bool:
    return "dropout" in name or "pdrop" in name or name in ("drop_prob", "drop_path", "drop_rate", "attn_drop")
