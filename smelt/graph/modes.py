"""Regions (gradients, autocast, kernels of attention) as graph nodes: capture emits these calls, autograd runs them.

Each `enter_*` returns a token for the matching `exit_*`. They act on the thread's real state, so a captured graph also
runs as plain Python.
"""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

from smelt.base import torch_c


@has_side_effect
def enter_grad_mode(enabled: bool) -> bool:
    """Switch gradient recording on or off; returns what it was."""
    previous = torch.is_grad_enabled()
    torch.set_grad_enabled(enabled)
    return previous


@has_side_effect
def exit_grad_mode(previous: bool) -> None:
    """Back to what `enter_grad_mode` returned."""
    torch.set_grad_enabled(previous)


@has_side_effect
def enter_autocast(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> torch.autocast:
    """Enter `torch.autocast(device_type, dtype, enabled, cache_enabled)`."""
    region = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    region.__enter__()
    return region


@has_side_effect
def exit_autocast(region: torch.autocast) -> None:
    """Leave the region that `enter_autocast` returned."""
    region.__exit__(None, None, None)


@has_side_effect
def enter_attention_kernels(allowed: tuple[bool, ...]) -> tuple[bool, ...]:
    """Allow these kernels of scaled_dot_product_attention (see `torch_c.ATTENTION_SETTERS`); returns which were."""
    previous = torch_c.attention_kernels()
    torch_c.set_attention_kernels(allowed)
    return previous


@has_side_effect
def exit_attention_kernels(previous: tuple[bool, ...]) -> None:
    """Back to what `enter_attention_kernels` returned."""
    torch_c.set_attention_kernels(previous)


EXITS = {
    enter_grad_mode: exit_grad_mode,
    enter_autocast: exit_autocast,
    enter_attention_kernels: exit_attention_kernels,
}
"""What leaves the region that each of them enters."""

MODE_CHANGES = frozenset({*EXITS, *EXITS.values()})
"""Node targets that change the thread's state and make no tensor."""
