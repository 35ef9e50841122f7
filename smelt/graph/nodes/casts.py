"""The thread's autocast state, for every kind of device on which graphs run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from smelt.base.process_state import switch

DEVICES = ("cpu", "cuda")

Casts = tuple[tuple[bool, torch.dtype], ...]
"""For each of DEVICES: whether autocast is enabled, and its dtype."""


def present_casts() -> Casts:
    """Returns the present autocast state."""
    return tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES)


def set_casts(casts: Casts) -> None:
    """Set the autocast state."""
    for device, (enabled, dtype) in zip(DEVICES, casts, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def casting() -> tuple[str, ...]:
    """Returns the kinds of devices on which autocast is enabled."""
    return tuple(filter(torch.is_autocast_enabled, DEVICES))


@contextmanager
def under_casts(casts: Casts) -> Iterator[None]:
    """A context in which the autocast state is `casts`."""
    before = present_casts()
    set_casts(casts)
    try:
        yield
    finally:
        set_casts(before)


switch("casts", present_casts, set_casts)
