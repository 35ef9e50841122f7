"""Makes models comparable: all tensors on the device, no dropout, no zero parameters that stop gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def without_dropout(model: nn.Module) -> bool:
    """Set every dropout probability of `model` to zero, in place; returns whether one was above zero.

    Covers dropout modules and the float attributes (of modules and of their config) that libraries pass to functional
    dropout and attention.
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
    """Set parameters that start at (nearly) zero to small normal values, in place; returns the number of these
    parameters.

    Libraries initialize some layers with zeros: the last gain of a residual block, a head, biases. No gradient flows
    through them, so gradients of the layers before them could not be compared. Uses torch's seeded generator.
    """
    asleep = [parameter for parameter in model.parameters() if parameter.numel() and parameter.abs().max() < 1e-3]
    with torch.no_grad():
        for parameter in asleep:
            parameter.normal_(0.0, deviation)
    return len(asleep)


def stabilize_statistics(model: nn.Module, run: Callable[[nn.Module], object]) -> int:
    """Set the statistics of batch norms to the scale of their inputs, in place; returns the number of these norms.

    With the statistics of a new model (mean 0, variance 1) activations of a deep model in eval mode grow until float32
    resolves only the largest of them. With the statistics of one batch, channels that hardly vary are divided by almost
    zero, which amplifies rounding errors. One scale for all channels of a norm avoids both.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    norms = [norm for norm in norms if norm.running_mean is not None and norm.running_var is not None]
    if not norms:
        return 0
    momenta = [norm.momentum for norm in norms]
    modes = [(module, module.training) for module in model.modules()]
    try:
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            run(model.train())
            for norm in norms:
                assert norm.running_mean is not None and norm.running_var is not None
                norm.running_var.fill_((norm.running_var + norm.running_mean**2).mean())
                norm.running_mean.zero_()
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return len(norms)


def move_attributes(model: nn.Module, device: str) -> int:
    """Move the tensors that modules keep as plain attributes to `device`, in place; returns their number.

    `Module.to` does not move them, for example tables that a constructor made and did not register as buffers.
    """
    plain = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]
    for module, name, value in plain:
        setattr(module, name, value.to(device))
    return len(plain)


def _is_dropout(name: str) -> bool:
    return "dropout" in name or "pdrop" in name or name in ("drop_prob", "drop_path", "drop_rate", "attn_drop")
